"""A prompt: the texts that an agent brings to its model, as named parts that replace those of the environment.

`system` is the first system message, `tool:NAME` the description of a tool and `tool:NAME.ARGUMENT` that of one of its
arguments. Names and schemas of tools never change. An agent with a loop of its own can have any other part, such as
`skill:refunds`, and reads it. A part that is missing stays as the environment has it.

A text can have placeholders: `{original}` is the environment's own text, and an episode can offer further fields.
`{{` and `}}` stand for single braces around such a name; all other braces are left alone.
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
    """A prompt that cannot be used. `part` is the part at fault, or None if it is the whole; `why` does not name it."""

    def __init__(self, part: str | None, why: str) -> None:
        super().__init__(why if part is None else f"part {part!r}: {why}")
        self.part = part
        self.why = why


@dataclass(frozen=True, slots=True)
class Prompt:
    """The texts of a prompt by part."""

    parts: Mapping[str, str]

    def as_json(self) -> dict[str, Json]:
        """Return the prompt as it is stored and sent."""
        return {"parts": dict(self.parts)}

    @property
    def size(self) -> int:
        """Bytes of its texts together, in UTF-8."""
        return sum(len(text.encode()) for text in self.parts.values())


def read_prompt(value: Json) -> Prompt:
    """Read a prompt from `{"parts": {NAME: TEXT}}`. Raises InvalidPrompt."""
    if not isinstance(value, dict) or not isinstance(value.get("parts"), dict):
        raise InvalidPrompt(None, 'expected an object such as {"parts": {"system": "You are ..."}}')
    if unknown := sorted(set(value) - {"parts"}):
        raise InvalidPrompt(None, f"there is no field {unknown[0]!r}; the only one is parts")
    parts = value["parts"]
    if not parts:
        raise InvalidPrompt(None, "there are no parts")
    if len(parts) > MAX_PARTS:
        raise InvalidPrompt(None, f"there are {len(parts)} parts, of at most {MAX_PARTS}")
    for name, text in parts.items():
        _check_part(name, text)
    prompt = Prompt(parts)
    if prompt.size > MAX_BYTES:
        raise InvalidPrompt(None, f"its texts have {prompt.size:,} bytes together, of at most {MAX_BYTES:,}")
    return prompt


def _check_part(name: str, text: Json) -> None:
    """Raise InvalidPrompt if the part's name or text is not one."""
    if _NAME.fullmatch(name) is None:
        raise InvalidPrompt(name, "the name is not one of system, tool:NAME, tool:NAME.ARGUMENT or KIND:NAME")
    if not {"", ".", ".."}.isdisjoint(name.partition(":")[2].split("/")) and name != SYSTEM:
        raise InvalidPrompt(name, "agents get it as a file, so the name is a path without . and ..")
    if not isinstance(text, str) or not text.strip():
        raise InvalidPrompt(name, "expected a text that is not empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidPrompt(name, "the text has half a surrogate pair, which is not Unicode") from None
    if "\0" in text:
        raise InvalidPrompt(name, "the text has a NUL character")


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
        return _opening(messages, tools, {name: _filled(name, text, fields) for name, text in prompt.parts.items()})
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


def _text(message: Mapping[str, Json]) -> str:
    """Return the text of a message, whose content can be a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def undelivered(texts: Mapping[str, str], messages: Iterable[Mapping[str, Json]], tools: Iterable[Json]) -> list[str]:
    """Return the parts whose texts are not in a rollout's first request to its model: those of tools in its tools, and
    all others in its messages."""
    text_of_messages = "\n".join(_text(message) for message in messages)
    described = set[str]()
    for tool in tools:
        function = tool.get("function") or {}
        properties = (function.get("parameters") or {}).get("properties") or {}
        described |= {
            str(function.get("description")),
            *(str(schema.get("description")) for schema in properties.values()),
        }
    return [
        name
        for name, text in texts.items()
        if not (text in described if name.startswith(TOOL) else text in text_of_messages)
    ]
