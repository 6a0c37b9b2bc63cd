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
    """A line is not a usable conversation. The message says why, in words that lines can share."""


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """A conversation in OpenAI's form."""

    form: str
    messages: Sequence[dict[str, Json]]
    tools: Sequence[Json] = ()
    prompt_messages: int = 0
    """Number of leading messages that the model was given; it need not have written the replies among them."""
    user: str | None = None
    """The user's key; None if the line names none."""
    expected: str | None = None
    """The expected answer; None if the line has none."""


def conversation(line: Json, user_field: str | None = None) -> ImportedConversation:
    """Return the conversation of a line. Raises Unusable."""
    if isinstance(line, list):
        line = {"messages": line}
    if not isinstance(line, dict):
        raise Unusable("it is neither an object nor a list of messages")
    form, prompt, reply = _parts(line)
    prompt_messages, tools = _prompt_messages(prompt)
    answer = [] if reply is None else _reply_messages(reply)
    if answer[: len(prompt_messages)] == prompt_messages:
        answer = answer[len(prompt_messages) :]
    first = line.get("system") if form == "sharegpt" else None
    start = [{"role": "system", "content": first}] if isinstance(first, str) and first else []
    messages = _Messages().read([*start, *prompt_messages, *answer])
    if not any(message["role"] == "assistant" for message in messages):
        raise Unusable("it has no reply of an assistant")
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("it has no message of a user")
    return ImportedConversation(
        form,
        messages,
        _tools(line.get("tools") or line.get("functions") or tools),
        len(prompt_messages) if answer else 0,
        user_of(line, user_field),
        next((text for key in _EXPECTED if isinstance(text := line.get(key), str) and text.strip()), None),
    )


def _parts(line: Mapping[str, Json]) -> tuple[str, Json, Json]:
    """Return a line's form, its prompt and its reply. Raises Unusable."""
    if isinstance(line.get("messages"), list):
        return "openai", line["messages"], None
    for key in ("conversations", "conversation"):
        if isinstance(line.get(key), list):
            return "sharegpt", line[key], None
    for prompt_key, reply_key, form in _PAIRS:
        if line.get(prompt_key) is not None and reply_key in line:
            if line[reply_key] is None:
                raise Unusable(f"its {reply_key} is empty")
            return form, line[prompt_key], line[reply_key]
    raise Unusable("it has none of: messages, conversations, inputs and output, input and output, prompt and response")


def user_of(line: Mapping[str, Json], field: str | None = None) -> str | None:
    """Return the key of the line's user. Weave's own `wb_user_id`, who traced the call, is the last resort."""
    names = (field,) if field is not None else _USERS
    holders = [line, *(inner for key in _PLACES if isinstance(inner := line.get(key), dict))]
    keys = [holder.get(name) for holder in holders for name in names]
    keys += [] if field is not None else [line.get("wb_user_id")]
    for value in keys:
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


def _prompt_messages(value: Json) -> tuple[list[Json], Json]:
    """Return the messages that a model was given, and its tools. Raises Unusable."""
    parsed = _json_of(value) if isinstance(value, str) else value
    if isinstance(parsed, list):
        return _as_messages(parsed, value, "user"), ()
    if isinstance(parsed, dict):
        if isinstance(parsed.get("messages"), list):
            return parsed["messages"], parsed.get("tools") or ()
        for key in ("kwargs", "input", "inputs"):
            if isinstance(parsed.get(key), dict | list):
                return _prompt_messages(parsed[key])
        if "role" in parsed:
            return [parsed], ()
        value = next((text for key in _ASKED if isinstance(text := parsed.get(key), str)), None)
    if not isinstance(value, str) or not value.strip():
        raise Unusable("what was asked is not in the form of messages")
    return [{"role": "user", "content": value}], ()


def _reply_messages(value: Json) -> list[Json]:
    """Return the messages of a reply. Raises Unusable."""
    parsed = _json_of(value) if isinstance(value, str) else value
    if isinstance(parsed, list):
        return _as_messages(parsed, value, "assistant")
    if isinstance(parsed, dict):
        if isinstance(choices := parsed.get("choices"), list) and choices and isinstance(choices[0], dict):
            return _reply_messages(choices[0].get("message") or choices[0].get("text"))
        if isinstance(parsed.get("messages"), list):
            return list(parsed["messages"])
        if "role" in parsed or "tool_calls" in parsed:
            return [{"role": "assistant", **parsed}]
        value = next((text for key in _REPLIED if isinstance(text := parsed.get(key), str)), None)
    if not isinstance(value, str) or not value.strip():
        raise Unusable("the reply is not in the form of a message")
    return [{"role": "assistant", "content": value}]


def _as_messages(rows: list[Json], value: Json, role: str) -> list[Json]:
    if rows and all(isinstance(row, dict) and ("role" in row or "from" in row) for row in rows):
        return rows
    if isinstance(value, str) and value.strip():
        return [{"role": role, "content": value}]
    raise Unusable("a list in it does not hold messages with roles")


@dataclass(slots=True)
class _Messages:
    """Reads the messages of one conversation. Calls without ids get some, and results belong to calls in order."""

    calls: int = 0
    open: list[str] = field(default_factory=list)

    def read(self, messages: Sequence[Json]) -> list[dict[str, Json]]:
        """Return the messages in OpenAI's form. Raises Unusable."""
        return [self._message(message) for message in messages]

    def _message(self, source: Json) -> dict[str, Json]:
        stated_role = source.get("role", source.get("from")) if isinstance(source, dict) else None
        role = _ROLES.get(stated_role.lower()) if isinstance(stated_role, str) else None
        if role is None:
            raise Unusable("a message has no role that is known")
        content_keys = ("content", "value", "text", "refusal")
        content = _text(next((source[key] for key in content_keys if source.get(key) is not None), None))
        if role == "tool":
            return {"role": role, "content": content, "tool_call_id": self._answered_call(source)}
        if role != "assistant":
            return {"role": role, "content": content}
        if stated_role == "function_call":
            calls, content = [self._call(_json_of(content))], ""
        else:
            calls = [self._call(call) for call in self._source_calls(source)]
        if not content.strip() and not calls:
            raise Unusable("a message of the assistant is empty")
        message: dict[str, Json] = {"role": role, **({"content": content} if content else {})}
        return message | ({"tool_calls": calls} if calls else {})

    def _source_calls(self, source: Mapping[str, Json]) -> list[Json]:
        calls = source.get("tool_calls") or ([source["function_call"]] if source.get("function_call") else [])
        if not isinstance(calls, list):
            raise Unusable("the tool_calls of a message are not a list")
        return calls

    def _call(self, source: Json) -> dict[str, Json]:
        function = source.get("function", source) if isinstance(source, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise Unusable("a call of a tool has no name")
        text = arguments_text(function.get("arguments"))
        if text is None or not isinstance(_json_of(text), dict):
            raise Unusable("the arguments of a call are not a JSON object")
        self.calls += 1
        id = source.get("id")
        self.open.append(id if isinstance(id, str) and id else f"call_{self.calls}")
        return {"id": self.open[-1], "type": "function", "function": {"name": name, "arguments": text}}

    def _answered_call(self, source: Mapping[str, Json]) -> str:
        id = source.get("tool_call_id")
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


def _tools(declared: Any) -> list[Json]:
    """Return tools in OpenAI's form; ShareGPT has them as text, and bare. What is not a tool is dropped."""
    parsed = _json_of(declared) if isinstance(declared, str) else declared
    tools = []
    for entry in parsed if isinstance(parsed, list) else ():
        function = entry.get("function", entry) if isinstance(entry, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]:
            fields = {
                key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None
            }
            tools.append({"type": "function", "function": fields})
    return tools
