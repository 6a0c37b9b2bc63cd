"""The forms in which people have their conversations, and the one form that Learnloop reads them into: OpenAI's.

A line is recognised by its keys: `messages` (OpenAI), `conversations` (ShareGPT), `inputs` and `output` (a call that
Weave traced), `input` and `output` (Langfuse), or a request with its response.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol import strict_json
from learnloop_service.training.protocol.chat_reader import TEXT_PARTS, arguments_text

_ROLES = {
    "system": "system",
    "developer": "developer",
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "ai", "bot", "model", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "tool_response"), "tool"),
}
_PAIRS = (
    ("inputs", "output", "weave"),
    ("input", "output", "langfuse"),
    ("request", "response", "openai"),
    ("prompt", "completion", "openai"),
    ("prompt", "response", "openai"),
)
_ASKED = ("question", "prompt", "query", "input", "text", "content", "message")
_REPLIED = ("answer", "output", "response", "text", "content", "reply")
_EXPECTED = ("expectedOutput", "expected_output", "correction")
_USERS = ("user_id", "userId", "end_user", "user", "customer_id")
_PLACES = ("metadata", "attributes")


class Unusable(ValueError):
    """A line is not a conversation that can be taken. The message says why, in words that lines can share."""


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """A conversation in OpenAI's form."""

    form: str
    messages: Sequence[dict[str, Json]]
    tools: Sequence[Json] = ()
    shown: int = 0
    """Number of first messages that the model was given, so that it is not known to have written their replies."""
    user: str | None = None
    """The user's key; None if the line names none."""
    expected: str | None = None
    """What would have been right, if somebody wrote it down."""


def conversation(line: Json, user_field: str | None = None) -> ImportedConversation:
    """Return the conversation of a line. Raises Unusable."""
    if isinstance(line, list):
        line = {"messages": line}
    if not isinstance(line, dict):
        raise Unusable("it is neither an object nor a list of messages")
    form, asked, replied = _parts(line)
    given, tools = _asked(asked)
    answer = [] if replied is None else _replied(replied)
    if answer[: len(given)] == given:
        answer = answer[len(given) :]
    first = line.get("system") if form == "sharegpt" else None
    start = [{"role": "system", "content": first}] if isinstance(first, str) and first else []
    messages = _Messages().read([*start, *given, *answer])
    if not any(each["role"] == "assistant" for each in messages):
        raise Unusable("it has no reply of an assistant")
    if not any(each["role"] == "user" for each in messages):
        raise Unusable("it has no message of a user")
    return ImportedConversation(
        form,
        messages,
        _tools(line.get("tools") or line.get("functions") or tools),
        len(given) if answer else 0,
        user_of(line, user_field),
        next((text for key in _EXPECTED if isinstance(text := line.get(key), str) and text.strip()), None),
    )


def _parts(line: Mapping[str, Json]) -> tuple[str, Json, Json]:
    """Return the form of a line, what was asked there, and what was replied. Raises Unusable."""
    if isinstance(line.get("messages"), list):
        return "openai", line["messages"], None
    for key in ("conversations", "conversation"):
        if isinstance(line.get(key), list):
            return "sharegpt", line[key], None
    for asked, replied, form in _PAIRS:
        if line.get(asked) is not None and replied in line:
            if line[replied] is None:
                raise Unusable(f"its {replied} is empty")
            return form, line[asked], line[replied]
    raise Unusable("it has none of: messages, conversations, inputs and output, input and output, prompt and response")


def user_of(line: Mapping[str, Json], field: str | None = None) -> str | None:
    """Return the key of the line's user. Weave's own `wb_user_id`, who traced the call, is the last resort."""
    names = (field,) if field is not None else _USERS
    places = [line, *(each for key in _PLACES if isinstance(each := line.get(key), dict))]
    found = [place.get(name) for place in places for name in names]
    found += [] if field is not None else [line.get("wb_user_id")]
    for value in found:
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return None


def _json_of(text: str) -> Json:
    """Return the list or object that a text holds, because some exports write them as text; otherwise the text."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return strict_json.loads(text.encode())
    except ValueError:
        return text


def _asked(value: Json) -> tuple[list[Json], Json]:
    """Return the messages that a model was given, and its tools. Raises Unusable."""
    found = _json_of(value) if isinstance(value, str) else value
    if isinstance(found, list):
        return _as_messages(found, value, "user"), ()
    if isinstance(found, dict):
        if isinstance(found.get("messages"), list):
            return found["messages"], found.get("tools") or ()
        for key in ("kwargs", "input", "inputs"):
            if isinstance(found.get(key), dict | list):
                return _asked(found[key])
        if "role" in found:
            return [found], ()
        value = next((text for key in _ASKED if isinstance(text := found.get(key), str)), None)
    if not isinstance(value, str) or not value.strip():
        raise Unusable("what was asked is not in the form of messages")
    return [{"role": "user", "content": value}], ()


def _replied(value: Json) -> list[Json]:
    """Return the messages with which it was answered. Raises Unusable."""
    found = _json_of(value) if isinstance(value, str) else value
    if isinstance(found, list):
        return _as_messages(found, value, "assistant")
    if isinstance(found, dict):
        if isinstance(choices := found.get("choices"), list) and choices and isinstance(choices[0], dict):
            return _replied(choices[0].get("message") or choices[0].get("text"))
        if isinstance(found.get("messages"), list):
            return list(found["messages"])
        if "role" in found or "tool_calls" in found:
            return [{"role": "assistant", **found}]
        value = next((text for key in _REPLIED if isinstance(text := found.get(key), str)), None)
    if not isinstance(value, str) or not value.strip():
        raise Unusable("the reply is not in the form of a message")
    return [{"role": "assistant", "content": value}]


def _as_messages(found: list[Json], value: Json, role: str) -> list[Json]:
    if found and all(isinstance(each, dict) and ("role" in each or "from" in each) for each in found):
        return found
    if isinstance(value, str) and value.strip():
        return [{"role": role, "content": value}]
    raise Unusable("a list in it does not hold messages with roles")


@dataclass(slots=True)
class _Messages:
    """Reads the messages of one conversation. Calls without ids get some, and results belong to calls in order."""

    calls: int = 0
    open: list[str] = field(default_factory=list)

    def read(self, given: Sequence[Json]) -> list[dict[str, Json]]:
        """Return the messages in OpenAI's form. Raises Unusable."""
        return [self._message(each) for each in given]

    def _message(self, given: Json) -> dict[str, Json]:
        said = given.get("role", given.get("from")) if isinstance(given, dict) else None
        role = _ROLES.get(said.lower()) if isinstance(said, str) else None
        if role is None:
            raise Unusable("a message has no role that is known")
        places = ("content", "value", "text", "refusal")
        content = _text(next((given[key] for key in places if given.get(key) is not None), None))
        if role == "tool":
            return {"role": role, "content": content, "tool_call_id": self._answered(given)}
        if role != "assistant":
            return {"role": role, "content": content}
        if said == "function_call":
            calls, content = [self._call(_json_of(content))], ""
        else:
            calls = [self._call(each) for each in self._given_calls(given)]
        if not content.strip() and not calls:
            raise Unusable("a message of the assistant is empty")
        message: dict[str, Json] = {"role": role, **({"content": content} if content else {})}
        return message | ({"tool_calls": calls} if calls else {})

    def _given_calls(self, given: Mapping[str, Json]) -> list[Json]:
        found = given.get("tool_calls") or ([given["function_call"]] if given.get("function_call") else [])
        if not isinstance(found, list):
            raise Unusable("the tool_calls of a message are not a list")
        return found

    def _call(self, given: Json) -> dict[str, Json]:
        function = given.get("function", given) if isinstance(given, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise Unusable("a call of a tool has no name")
        text = arguments_text(function.get("arguments"))
        if text is None or not isinstance(_json_of(text), dict):
            raise Unusable("the arguments of a call are not a JSON object")
        self.calls += 1
        id = given.get("id")
        self.open.append(id if isinstance(id, str) and id else f"call_{self.calls}")
        return {"id": self.open[-1], "type": "function", "function": {"name": name, "arguments": text}}

    def _answered(self, given: Mapping[str, Json]) -> str:
        id = given.get("tool_call_id")
        if not isinstance(id, str) or not id:
            id = self.open[0] if self.open else ""
        if id not in self.open:
            raise Unusable("a result of a tool has no call before it")
        self.open.remove(id)
        return id


def _text(content: Json) -> str:
    """Return the text of a message's content. Raises Unusable."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(_text_parts(content))
    raise Unusable("the content of a message is not a text")


def _text_parts(parts: list[Json]) -> Iterator[str]:
    for part in parts:
        text = part.get(TEXT_PARTS.get(str(part.get("type")), "text")) if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise Unusable("a message holds more than text, such as a picture")
        yield text


def _tools(given: Any) -> list[Json]:
    """Return tools in OpenAI's form; ShareGPT has them as text, and bare. What is not a tool is dropped."""
    found = _json_of(given) if isinstance(given, str) else given
    tools = []
    for each in found if isinstance(found, list) else ():
        function = each.get("function", each) if isinstance(each, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]:
            kept = {
                key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None
            }
            tools.append({"type": "function", "function": kept})
    return tools
