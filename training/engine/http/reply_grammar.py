"""A chat request's constraints on its reply as a grammar: JSON that matches a schema, and calls of the offered tools
only.

A request without constraints has no grammar, and its reply is sampled freely. With `tool_choice` auto, tools that are
not strict can be called in any form that the model produces; training is meant to correct it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.protocol.tool_formats.formats import ToolFormat

_WHITE_SPACE = r"\x20|\x0A\x20{0,32}"
"""White space as people use it to indent JSON. A model that may write any amount can get stuck writing nothing else."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema of a request. Keywords that cannot be enforced are ignored unless it is `strict`."""

    field: str
    """The schema's field in the request."""
    schema: Mapping[str, Json]
    strict: bool


@dataclass(frozen=True, slots=True)
class ReplyGrammar:
    """A grammar whose `text` is in llguidance's variant of Lark and contains the `schemas`."""

    text: str
    schemas: tuple[Schema, ...]


def reply_grammar(request: EngineChatRequest, tool_format: ToolFormat) -> ReplyGrammar | None:
    """Return the grammar that the reply must conform to, or None if the request has no constraints."""
    schema = _text_schema(request)
    tools = _callable_tools(request, tool_format)
    if schema is None and not tools:
        return None
    rules = {"WS": f"/{_WHITE_SPACE}/", "TEXT": f"/(?s:.*)/ & ~/(?s:.*){tool_format.no_text}(?s:.*)/"}
    schemas = []
    if schema is not None:
        schemas.append(schema)
        rules["said"] = _json_rule(schema)
    elif not _must_call(request):
        rules["said"] = "TEXT"
    for number, tool in tools.items():
        schemas.append(_arguments(number, tool))
        name = json.dumps(json.dumps(tool["name"], ensure_ascii=False))  # JSON, as a Lark string
        arguments = f"arguments_{number}"
        rules[arguments] = _json_rule(schemas[-1])
        rules[f"call_{number}"] = (
            rf'"{{" WS? "\"name\"" WS? ":" WS? {name} WS? "," WS? '
            rf'"\"{tool_format.arguments_key}\"" WS? ":" WS? {arguments} WS? "}}"'
        )
    rules |= _calls(request, tool_format, [f"call_{number}" for number in tools], text=schema is None)
    text = "\n".join(f"{name}: {rule}" for name, rule in rules.items())
    return ReplyGrammar(text, tuple(schemas))


def _calls(request: EngineChatRequest, tool_format: ToolFormat, calls: Sequence[str], *, text: bool) -> dict[str, str]:
    """Return the rules around `said`, with calls before, after or instead of it."""
    if not calls:
        return {"start": "said"}
    one = request.parallel_tool_calls is False or isinstance(request.tool_choice, dict)
    rules = {"call": _call(tool_format, f"({' | '.join(calls)})", one=one)}
    if (mark := _mark(tool_format)) and text and not _must_call(request):
        # A lazy rule ends at the first mark, so texts cannot contain one.
        more = "" if one else " start"
        return rules | {"opening[lazy]": f'TEXT "{mark}"', "start": f"said | opening call{more}"}
    between = f'"{tool_format.separator.strip()}" WS? ' if tool_format.separator.strip() else ""
    again = "" if one or tool_format.before else f" (WS? {between}{_quoted(mark)}call)*"
    constrained = f"{_quoted(mark)}call{again}"
    if _must_call(request):
        return rules | {"start": constrained}
    return rules | {"start": f"said | {'TEXT? ' if text else ''}{constrained}"}


def _mark(tool_format: ToolFormat) -> str:
    """Return the mark before the first call, or an empty string if it begins with its JSON."""
    return (tool_format.before or tool_format.opening).strip()


def _call(tool_format: ToolFormat, call: str, *, one: bool) -> str:
    """Return the right side of the rule for what follows the mark."""
    if tool_format.after:  # one mark before a list of all calls
        more = "" if one else f' (WS? "{tool_format.separator.strip()}" WS? {call})*'
        return f'WS? {call}{more} WS? "{tool_format.after}"'
    closing = tool_format.closing.strip()
    return f'WS? {call} WS? "{closing}"' if closing else call


def _quoted(mark: str) -> str:
    return f'"{mark}" ' if mark else ""


def _text_schema(request: EngineChatRequest) -> Schema | None:
    """Return the schema of the text, or None if any text or no text is allowed."""
    response_format = request.response_format
    if response_format is None or response_format.type == "text" or _must_call(request):
        return None
    if response_format.type == "json_object":
        return Schema("response_format", {"type": "object"}, strict=True)
    assert response_format.json_schema is not None
    field = "response_format.json_schema.schema"
    return Schema(
        field,
        response_format.json_schema.schema_ or {"type": "object"},
        strict=bool(response_format.json_schema.strict),
    )


def _callable_tools(request: EngineChatRequest, tool_format: ToolFormat) -> dict[int, dict[str, Json]]:
    """Return the functions that can be called, by index of the tool. Empty if calls are not constrained."""
    functions = {number: tool["function"] for number, tool in enumerate(request.offered_tools or [])}
    if isinstance(request.tool_choice, dict):
        named = request.tool_choice["function"]["name"]
        return {number: function for number, function in functions.items() if function["name"] == named}
    demanding = (
        request.tool_choice == "required"
        or _text_schema(request) is not None
        or any(function.get("strict") for function in functions.values())
        or (request.only_one_call and not tool_format.closing)  # sampling cannot end at a mark
    )
    return functions if demanding else {}


def _must_call(request: EngineChatRequest) -> bool:
    return request.tool_choice == "required" or isinstance(request.tool_choice, dict)


def _arguments(number: int, function: Mapping[str, Json]) -> Schema:
    """Return the schema of a function's arguments. A tool without parameters takes none."""
    parameters = function.get("parameters")
    schema = {"additionalProperties": False} if parameters is None else parameters
    return Schema(f"tools[{number}].function.parameters", {"type": "object", **schema}, bool(function.get("strict")))


def _json_rule(schema: Schema) -> str:
    """Return the right side of a rule for JSON that matches a schema."""
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": not schema.strict}
    return f"%json {json.dumps({**schema.schema, 'x-guidance': options})}"
