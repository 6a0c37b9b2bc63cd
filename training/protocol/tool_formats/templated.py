"""Calls as a response template of transformers describes them: the marks around the parts of a reply, and how the text
between them is read.

transformers' parser reads the reply. It accepts whatever it finds, so this module adds why a text that looks like a
call is not one. Under a grammar the models write calls as Hermes does, and these are read as well.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.tool_formats import hermes
from learnloop_service.training.protocol.tool_formats.written_calls import (
    MalformedCall,
    WrittenCall,
    WrittenCalls,
    of_texts,
    reason,
)

_CALLS, _CONTENT = "tool_calls", "content"
_CALL: Json = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_AS_IS: Json = {"content": "text", "content_args": {"strip": False}}

QWEN3_5: Mapping[str, Json] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        _CALLS: {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": _CALL,
        },
        _CONTENT: _AS_IS,
    },
}
"""Response template of Qwen3-Coder and Qwen 3.5."""
GEMMA4: Mapping[str, Json] = {
    "start_anchor": ["<|turn>model\n", "<tool_response|>"],
    "fields": {
        _CALLS: {
            "open_pattern": r"<\|tool_call>call:(?P<name>[\w.-]+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": _CALL,
        },
        _CONTENT: _AS_IS,
    },
}
GPT_OSS: Mapping[str, Json] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        _CALLS: {
            "open_pattern": r"(?:<\|start\|>assistant)?(?:<\|channel\|>\w+)? ?to=functions\.(?P<name>[\w.-]+)"
            r"(?:<\|channel\|>\w+)? ?(?:<\|constrain\|>)?\w*<\|message\|>",
            # Sampling ends with the mark, which is not part of the text then.
            "close_pattern": r"<\|call\|>|\Z",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        _CONTENT: {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)<\|message\|>",
            "close": ["<|return|>", "<|end|>"],
            **_AS_IS,
        },
    },
}
"""Response template of gpt-oss. Text outside of its channels is not content."""


def find(text: str, template: Mapping[str, Json], opening: str, closing: str) -> WrittenCalls:
    """Find the calls. `opening` stands in the mark before each call, and `closing` in the one after it."""
    try:
        written = _find(text, template, opening, closing)
    except MalformedCall as error:
        written = WrittenCalls(malformed=str(error))
    if not written.calls and hermes.JSON_CALL.search(text):
        forced = hermes.find(text)
        return forced if forced.calls or not written.malformed else written
    return written


def _find(text: str, template: Mapping[str, Json], opening: str, closing: str) -> WrittenCalls:
    calls: list[WrittenCall] = []
    content, body, spelt = "", "", {opening: 0, closing: 0}
    for event in _events(template, text, closing):
        field, kind = event["field"], event["type"]
        if kind == "region_chunk" and field == _CALLS:
            body += event["text"]
        elif kind == "region_chunk":
            content += event["text"]
        elif kind == "region_close" and field == _CALLS:
            calls.append(_call(event["value"], body, template))
            spelt = {mark: count + body.count(mark) for mark, count in spelt.items()}
            body = ""
    if text.count(opening) - spelt[opening] > len(calls):
        raise MalformedCall(f"{opening} stands where no call that can be read begins.")
    if text.count(closing) - spelt[closing] > len(calls):
        raise MalformedCall(f"{closing} stands where no call ends.")
    return WrittenCalls(tuple(calls), content.removesuffix("\n"))


def _arguments(name: str, arguments: Json, text: str) -> str:
    """Return the JSON text of arguments, which is the model's own `text` if there is one. Raises MalformedCall."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise MalformedCall(f"The arguments of {name} have a number that JSON does not have.") from None
    return text or written


@cache
def _spec(template: str) -> Any:
    """Compile a template, given as JSON."""
    from transformers.utils.chat_parsing.response_templates import load_response_template  # imports torch

    return load_response_template(json.loads(template))


def _events(template: Mapping[str, Json], text: str, closing: str) -> list[dict[str, Json]]:
    """Return what transformers' parser finds in the text, in order. Raises MalformedCall."""
    from transformers.utils.chat_parsing import ResponseParser

    spec = _spec(json.dumps(template))
    parser = ResponseParser(spec, prefix="")
    try:
        # A mark at the very end could still grow, so that the parser would not report it before the end.
        events = parser.feed(f"{text}\n")
        kinds = [event["type"] for event in events if event["field"] == _CALLS]
        if kinds.count("region_open") > kinds.count("region_close") and not spec.fields[_CALLS].close_re.search(""):
            raise MalformedCall(f"The last call does not end with {closing}.")
        return [*events, *parser.finalize()[1]]
    except MalformedCall:
        raise
    except (ValueError, RecursionError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, ValueError) else error
        raise MalformedCall(f"The arguments of a call are not valid: {reason(cause)}.") from None


def _call(parsed: Json, body: str, template: Mapping[str, Json]) -> WrittenCall:
    """Return the call that the parser made of the text between the marks. Raises MalformedCall."""
    name, arguments = parsed["function"]["name"], parsed["function"]["arguments"]
    if not isinstance(arguments, dict):
        raise MalformedCall(f"The arguments of {name} are not a JSON object.")
    options = template["fields"][_CALLS].get("content_args", {})
    pattern = options.get("tag_pattern")
    if pattern is None:
        return WrittenCall(name, _arguments(name, arguments, "" if options else body.strip()))
    if re.sub(pattern, "", body, flags=re.DOTALL).strip():
        raise MalformedCall(f"There is text between the arguments of {name}.")
    return of_texts(name, arguments)
