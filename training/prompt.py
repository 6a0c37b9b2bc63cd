"""A prompt: the texts that an agent brings to its model, as named parts that replace those of the environment.

`system` is the first system message, `tool:NAME` the description of a tool and `tool:NAME.ARGUMENT` that of one of its
arguments. Names and schemas of tools never change. An agent with a loop of its own can have any other part, such as
`skill:refunds`, and reads it. A part that is missing stays as the environment has it.

A text can have placeholders: `{original}` is the environment's own text, and an episode can offer further fields.
`{{` and `}}` stand for single braces around such a name; all other braces are left alone.

A prompt can also have the texts of an agent that it replaces, by part: then the session gateway puts its own there
(`training/replacing.py`), and `{original}` is the replaced text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from learnloop_service.environment.base import Episode, EpisodeWithFields, Json, ReportedEpisode, Tool

MAX_PARTS = 64
MAX_BYTES = 32_768
"""Of all texts together, in UTF-8."""
SYSTEM = "system"
TOOL = "tool:"
_NAME = re.compile(r"system|tool:[A-Za-z0-9_.-]{1,128}|(?!tool:)[a-z][a-z0-9_-]{0,31}:[A-Za-z0-9_./ -]{1,128}")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{([a-z_]+)\}")
ORIGINAL = "original"
UNDELIVERED_PARTS = "undelivered_parts"
"""Metric of a rollout with a prompt: how many of its parts were not in the first request to the model."""


class InvalidPrompt(ValueError):
    """A prompt that cannot be used. `part` is the part at fault, or None if it is the whole; `why` does not name it.
    `member` is `replaces` if the fault is in the text that the part replaces."""

    def __init__(self, part: str | None, why: str, member: str = "parts") -> None:
        super().__init__(why if part is None else f"part {part!r}: {why}")
        self.part = part
        self.why = why
        self.member = member


@dataclass(frozen=True, slots=True)
class Prompt:
    """The texts of a prompt by part."""

    parts: Mapping[str, str]
    replaces: Mapping[str, str] = field(default_factory=dict)
    """The texts of an agent that its parts replace; empty for an agent that reads its prompt."""

    def as_json(self) -> dict[str, Json]:
        """Return the prompt as it is stored and sent."""
        return {"parts": dict(self.parts), **({"replaces": dict(self.replaces)} if self.replaces else {})}

    @property
    def size(self) -> int:
        """Bytes of its texts together, in UTF-8."""
        return sum(len(text.encode()) for text in self.parts.values())


def read_prompt(value: Json) -> Prompt:
    """Read a prompt from `{"parts": {NAME: TEXT}, "replaces": {NAME: TEXT}}`; the latter can be missing. Raises
    InvalidPrompt."""
    if not isinstance(value, dict) or not isinstance(value.get("parts"), dict):
        raise InvalidPrompt(None, 'expected an object such as {"parts": {"system": "You are ..."}}')
    if unknown := sorted(set(value) - {"parts", "replaces"}):
        raise InvalidPrompt(None, f"there is no field {unknown[0]!r}; there are parts and replaces")
    parts, replaces = value["parts"], value.get("replaces") or {}
    if not isinstance(replaces, dict):
        raise InvalidPrompt(None, "replaces is not an object")
    if not parts:
        raise InvalidPrompt(None, "there are no parts")
    _check_texts("parts", parts)
    _check_texts("replaces", replaces)
    for name in replaces:
        if name != SYSTEM and not name.startswith(TOOL):
            raise InvalidPrompt(
                name, "only system and tool:NAME are in requests, so only they are replaced", "replaces"
            )
    prompt = Prompt(parts, replaces)
    if replaces:
        own_texts(prompt)  # such an agent offers no other placeholders than {original}
    return prompt


def _check_texts(member: str, texts: Mapping[str, Json]) -> None:
    """Raise InvalidPrompt if the texts are too many or too long, or a name or text is not one."""
    if len(texts) > MAX_PARTS:
        raise InvalidPrompt(None, f"there are {len(texts)} {member}, of at most {MAX_PARTS}")
    for name, text in texts.items():
        _check_part(name, text, member)
    if (size := Prompt(texts).size) > MAX_BYTES:
        raise InvalidPrompt(None, f"the texts of {member} have {size:,} bytes together, of at most {MAX_BYTES:,}")


def _check_part(name: str, text: Json, member: str) -> None:
    """Raise InvalidPrompt if the part's name or text is not one."""
    if _NAME.fullmatch(name) is None:
        raise InvalidPrompt(name, "the name is not one of system, tool:NAME, tool:NAME.ARGUMENT or KIND:NAME", member)
    if not {"", ".", ".."}.isdisjoint(name.partition(":")[2].split("/")) and name != SYSTEM:
        raise InvalidPrompt(name, "agents get it as a file, so the name is a path without . and ..", member)
    if not isinstance(text, str) or not text.strip():
        raise InvalidPrompt(name, "expected a text that is not empty", member)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidPrompt(name, "the text has half a surrogate pair, which is not Unicode", member) from None
    if "\0" in text:
        raise InvalidPrompt(name, "the text has a NUL character", member)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a rollout begins: messages and tools in OpenAI's format, and the texts of the prompt in them by part."""

    messages: list[dict[str, Json]]
    tools: list[dict[str, Json]] | None
    """None if the episode has no tools."""
    tool_list: Sequence[Tool]
    """The same tools as the episode's type."""
    texts: Mapping[str, str] = field(default_factory=dict)


def opening(episode: Episode, prompt: Prompt | None, messages: list[dict[str, Json]] | None = None) -> Opening:
    """Return how a rollout of the episode begins with the prompt. `messages` are the episode's own, where they are
    known. Raises InvalidPrompt for a part or a placeholder that the episode does not have."""
    messages, tools = episode.messages() if messages is None else messages, list(episode.tools)
    if prompt is None:
        return _opening(messages, tools, {})
    fields = episode.fields() if isinstance(episode, EpisodeWithFields) else {}
    if isinstance(episode, ReportedEpisode):  # its agent has messages and tools of its own, and reads the prompt
        return _opening(messages, tools, own_texts(prompt, fields))
    texts = dict[str, str]()
    for name, text in prompt.parts.items():
        if name == SYSTEM:
            original = _text(messages[0]) if messages and messages[0].get("role") == "system" else ""
            texts[name] = _filled(name, text, {**fields, ORIGINAL: original})
            messages = [{"role": "system", "content": texts[name]}, *(messages[1:] if original else messages)]
        elif name.startswith(TOOL):
            texts[name] = _describe(tools, name, text, fields)
        else:
            texts[name] = _filled(name, text, fields)
    return _opening(messages, tools, texts)


def own_texts(prompt: Prompt, fields: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the texts of a prompt by part, for an agent with messages and tools of its own. Raises InvalidPrompt."""
    originals = {name: {ORIGINAL: text} for name, text in prompt.replaces.items()}
    return {
        name: _filled(name, text, {**(fields or {}), **originals.get(name, {})}) for name, text in prompt.parts.items()
    }


def _opening(messages: list[dict[str, Json]], tools: list[Tool], texts: Mapping[str, str]) -> Opening:
    return Opening(messages, [tool.openai() for tool in tools] or None, tools, texts)


def _describe(tools: list[Tool], part: str, text: str, fields: Mapping[str, str]) -> str:
    """Describe a tool, or one of its arguments, anew in `tools`, and return the description. Raises InvalidPrompt."""
    name, argument = part.removeprefix(TOOL), None
    numbers = {tool.name: number for number, tool in enumerate(tools)}
    if name not in numbers and "." in name:  # names of tools can have dots, too
        name, _, argument = name.rpartition(".")
    if name not in numbers:
        raise InvalidPrompt(part, f"there is no tool {name!r}; the tools are {_listed(numbers)}")
    tool = tools[numbers[name]]
    if argument is None:
        described = _filled(part, text, {**fields, ORIGINAL: tool.description})
        tools[numbers[name]] = Tool(tool.name, described, tool.parameters)
        return described
    parameters: dict[str, Any] = deepcopy(dict(tool.parameters))
    arguments = parameters.get("properties") or {}
    if argument not in arguments:
        raise InvalidPrompt(part, f"{name} has no argument {argument!r}; its arguments are {_listed(arguments)}")
    described = _filled(part, text, {**fields, ORIGINAL: str(arguments[argument].get("description", ""))})
    arguments[argument]["description"] = described
    tools[numbers[name]] = Tool(tool.name, tool.description, parameters)
    return described


def _filled(part: str, text: str, fields: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        escaped, name = match[1], match[2]
        if escaped is not None:
            return f"{{{escaped}}}"
        if name not in fields:
            raise InvalidPrompt(
                part,
                f"there is no placeholder {{{name}}}; there are {_listed(fields)}. Write {{{{"
                f"{name}}}}} for the text itself",
            )
        return fields[name]

    return _PLACEHOLDER.sub(value, text)


def literal(text: str) -> str:
    """Return a part that is the text itself: nothing in it is a placeholder."""
    return _PLACEHOLDER.sub(lambda match: f"{{{match[0]}}}", text)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _text(message: Mapping[str, Json]) -> str:
    """Return the text of a message, whose content can be a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def is_in(prompt: Prompt, messages: Iterable[Mapping[str, Json]], tools: Iterable[Json]) -> bool:
    """Return whether a request to a model has all parts of the prompt, with any texts for its placeholders."""
    text_of_messages, described = _texts_of(messages, tools)
    return all(
        any(_has(text, part) for text in (described if name.startswith(TOOL) else (text_of_messages,)))
        for name, part in prompt.parts.items()
    )


def _has(text: str, part: str) -> bool:
    """Return whether the text has what is between the part's placeholders, in order."""
    pieces, end = _PLACEHOLDER.sub(lambda match: f"{{{match[1]}}}" if match[1] else "\0", part).split("\0"), 0
    for piece in map(str.strip, pieces):
        if (begin := text.find(piece, end)) < 0:
            return False
        end = begin + len(piece)
    return True


def undelivered(texts: Mapping[str, str], messages: Iterable[Mapping[str, Json]], tools: Iterable[Json]) -> list[str]:
    """Return the parts whose texts are not in a rollout's first request to its model: those of tools in its tools, and
    all others in its messages."""
    text_of_messages, described = _texts_of(messages, tools)
    return [
        name
        for name, text in texts.items()
        if not (text in described if name.startswith(TOOL) else text in text_of_messages)
    ]


def _texts_of(messages: Iterable[Mapping[str, Json]], tools: Iterable[Json]) -> tuple[str, set[str]]:
    """Return the text of the messages, and the descriptions of the tools and their arguments."""
    return "\n".join(_text(message) for message in messages), set(descriptions(tools).values())


def descriptions(tools: Iterable[Json]) -> dict[str, str]:
    """Return what tools in OpenAI's form and their arguments are described by, by part."""
    texts = dict[str, str]()
    for tool in tools:
        function = _object(_object(tool).get("function")) or _object(tool)  # the Responses API has it without a wrapper
        name = f"{TOOL}{function.get('name')}"
        texts[name] = str(function.get("description") or "")
        arguments = _object(_object(function.get("parameters")).get("properties"))
        for argument, schema in arguments.items():
            texts[f"{name}.{argument}"] = str(_object(schema).get("description") or "")
    return {part: text for part, text in texts.items() if text.strip()}
