"""The formats in which models write tool calls, by name.

A base model has one: the one that its `learnloop.json` names, which `learnloop bases add` writes after trying them, or
else the one that its chat template shows. Training, evaluation, questions and every API read calls with `read`.

Families with a notation of their own are read by transformers' parser (templated.py). vLLM's parsers belong to its
server, and drop what they cannot read.
"""

import hashlib
import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.tool_formats import bare_json, hermes, mistral, templated
from learnloop_service.training.protocol.tool_formats.thoughts import find_outside, without_thoughts
from learnloop_service.training.protocol.tool_formats.written_calls import WrittenCall, WrittenCalls, of_texts


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call as the model wrote it. `arguments` is its JSON text, character for character."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The content of a sampled text. `content` is None if there are only calls. `malformed` says why the text has no
    calls although it looks like one; the whole text is content then."""

    content: str | None
    tool_calls: tuple[ModelToolCall, ...]
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes tool calls: `before`, the calls, `after`. A call is a JSON object, and between `opening` and
    `closing` if the format has these marks."""

    name: str
    find: Callable[[str], WrittenCalls] = field(repr=False)
    opening: str = ""
    closing: str = ""
    before: str = ""
    after: str = ""
    separator: str = "\n"
    """Stands between two calls."""
    arguments_key: str = "arguments"
    marks: tuple[str, ...] = ()
    """Texts with which calls can begin. A streamed reply is held back from the first one on."""
    no_text: str = r"\{"
    """Regular expression of what a text without calls cannot contain, if the reply is constrained to a grammar."""
    call_end: str = ""
    """What ends a call that is not written between `opening` and `closing`, as models do under a grammar only."""
    shown_as_text: bool = False
    """Whether tools, calls and results are shown as text even if the chat template can show them."""
    in_channels: bool = False
    """Whether content stands in a channel, so that the rest of a reply is not content: its marks and thoughts."""

    def read(
        self, text: str, *, call_seed: str = "", in_thought: bool = False, tools: Sequence[Mapping[str, Json]] = ()
    ) -> Reply:
        """Extract the calls from a sampled text, which begins `in_thought` if the prompt opened one. Never raises.

        Thoughts are content, also the calls in them. If any call is malformed, the whole text is content, so that the
        caller sees what the model wrote. Ids of calls are digests of `call_seed`, the text and their position. The
        schemas of `tools` say which arguments are strings if the format does not.
        """
        written = find_outside(text, self.find, opened=in_thought)
        if self.in_channels:
            written = replace(written, content=without_thoughts(written.content, opened=in_thought))
        if not written.calls:
            content = written.content.strip() if self.in_channels and not written.malformed else ""
            return Reply(content or text, (), written.malformed)
        typed = [_typed(call, tools) if call.texts else call for call in written.calls]
        calls = [_identified(call, f"{call_seed}\n{number}\n{text}") for number, call in enumerate(typed)]
        return Reply(written.content.strip() or None, tuple(calls))

    def write(self, calls: Sequence[WrittenCall]) -> str:
        """Return calls as a model writes them. `read` gives them back."""
        written = self.separator.join(f"{self.opening}{self._object(call)}{self.closing}" for call in calls)
        return f"{self.before}{written}{self.after}"

    def _object(self, call: WrittenCall) -> str:
        return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{self.arguments_key}": {call.arguments}}}'


def call_id(seed: str) -> str:
    """Return an id of a call for a seed: nine letters and digits, because Mistral's chat templates take no others."""
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in hashlib.sha256(seed.encode()).digest()[:9])


_LETTERS = string.ascii_letters + string.digits


def _identified(call: WrittenCall, seed: str) -> ModelToolCall:
    return ModelToolCall(call_id(seed), call.name, call.arguments)


def _typed(call: WrittenCall, tools: Sequence[Mapping[str, Json]]) -> WrittenCall:
    """Return a call with strings where the tool's schema has them."""
    functions = (tool.get("function", tool) for tool in tools)
    called: Mapping[str, Json] = next((function for function in functions if function.get("name") == call.name), {})
    schemas = ((called.get("parameters") or {}).get("properties") or {}).items()
    strings = [key for key, schema in schemas if isinstance(schema, Mapping) and schema.get("type") == "string"]
    return of_texts(call.name, call.texts, strings)


_JSON_MARKS = ("{", "[{", "```", "<tool_call>", "<tools>")

HERMES = ToolFormat(
    "hermes",
    hermes.find,
    opening=f"{hermes.OPENING}\n",
    closing=f"\n{hermes.CLOSING}",
    marks=(hermes.OPENING,),
    no_text=r"<\/?tool_call>",
)
JSON = ToolFormat("json", partial(bare_json.find, keys=("arguments",)), marks=_JSON_MARKS)
LLAMA3_JSON = ToolFormat(
    "llama3_json",
    partial(bare_json.find, keys=("parameters", "arguments"), separator=";"),
    separator="; ",
    arguments_key="parameters",
    marks=("<|python_tag|>", *_JSON_MARKS),
)
MISTRAL = ToolFormat(
    "mistral",
    mistral.find,
    before=f"{mistral.OPENING}[",
    after="]",
    separator=", ",
    marks=(mistral.OPENING,),
    no_text=r"\[TOOL_CALLS\]",
)
TEXT = ToolFormat(
    "text",
    partial(bare_json.find, keys=("arguments",)),
    opening="```json\n",
    closing="\n```",
    marks=_JSON_MARKS,
    shown_as_text=True,
)


def _templated(
    name: str, template: Mapping[str, Json], opening: str, closing: str, *, in_channels: bool = False
) -> ToolFormat:
    """Return a format that transformers reads. Under a grammar its calls are written as Hermes writes them."""
    find = partial(templated.find, template=template, opening=opening, closing=closing)
    marks = (opening, hermes.OPENING)
    return replace(HERMES, name=name, find=find, marks=marks, call_end=closing, in_channels=in_channels)


QWEN3_5 = _templated("qwen3_5", templated.QWEN3_5, hermes.OPENING, hermes.CLOSING)
GEMMA4 = _templated("gemma4", templated.GEMMA4, "<|tool_call>", "<tool_call|>")
GPT_OSS = _templated("gpt_oss", templated.GPT_OSS, "to=functions.", "<|call|>", in_channels=True)
FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        tool_format.name: tool_format
        for tool_format in (HERMES, JSON, LLAMA3_JSON, MISTRAL, TEXT, QWEN3_5, GEMMA4, GPT_OSS)
    }
)
"""All formats by name."""


_FAMILIES = {"<function=": QWEN3_5, "<|tool_call>call:": GEMMA4, "to=functions.": GPT_OSS}
"""The format of a family by a mark in its chat template."""


def format_of_template(template: str, *, shows_tools: bool) -> ToolFormat:
    """Return the format that a chat template shows its model, by the marks in it."""
    if not shows_tools:
        return TEXT
    for mark, family in _FAMILIES.items():
        if mark in template:
            return family
    if mistral.OPENING in template:
        return MISTRAL
    if hermes.OPENING in template:
        return HERMES
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return LLAMA3_JSON
    return JSON
