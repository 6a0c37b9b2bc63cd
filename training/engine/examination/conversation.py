"""What a base model's chat template shows of a conversation with tools, and whether a call is read back."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from environment.json_type import Json
from training.base_report import Finding, Severity
from training.engine.tokens import BadConversation, ChatTokenizer, Message

_DOUBLED = re.compile(r"\{\{\s*[\"']name[\"']\s*:")
_SYSTEM = "Answer by looking into the inbox."
_RESULT = "The kickoff moved to 12 May."
_ARGUMENTS = {"keywords": ["kickoff"], "max_results": 5}
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "search_inbox",
        "description": "Find emails by words.",
        "parameters": {
            "type": "object",
            "properties": {
                "keywords": {"type": "array", "items": {"type": "string"}},
                "max_results": {"type": "integer"},
            },
            "required": ["keywords"],
        },
    },
}
_CALL = {"id": "call-1", "type": "function", "function": {"name": "search_inbox", "arguments": json.dumps(_ARGUMENTS)}}
_MESSAGES: list[Message] = [
    {"role": "system", "content": _SYSTEM},
    {"role": "user", "content": "When is the kickoff?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": _RESULT, "tool_call_id": "call-1", "name": "search_inbox"},
]
_REPLY = 2
"""Index of the message with the call."""


def shown(tokenizer: ChatTokenizer) -> str:
    """Return the text of a conversation with a system message, a tool, a call and its result, as the model gets it, or
    an empty text if the template refuses it."""
    try:
        return tokenizer.decode(tokenizer.prompt(_MESSAGES, [_TOOL]))
    except BadConversation:
        return ""


def has_doubled_braces(text: str) -> bool:
    """Return whether a rendered conversation shows a call in `{{...}}`."""
    return _DOUBLED.search(text) is not None


def findings(directory: Path, tokenizer: ChatTokenizer, text: str) -> Iterator[Finding]:
    """Yield what the template shows of the conversation that `shown` rendered as `text`."""
    yield _template(directory)
    if not text:
        yield Finding(
            "conversation",
            Severity.WARNING,
            "Its chat template refuses a conversation with a system message, a tool, a call and its result.",
            "Replace its chat_template.jinja with one that accepts tools.",
        )
        return
    missing = [name for name, part in _PARTS.items() if part not in text]
    if missing:
        yield Finding(
            "conversation",
            Severity.WARNING,
            f"Its chat template leaves out {', '.join(missing)}.",
            "Replace its chat_template.jinja with one that shows them.",
        )
        return
    yield _read_back(tokenizer)


_PARTS = {
    "the system message": _SYSTEM,
    "the tools": "max_results",
    "calls": '"kickoff"',
    "results": _RESULT,
}


def _template(directory: Path) -> Finding:
    config = directory / "tokenizer_config.json"
    try:
        own = bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template")) if config.is_file() else False
    except (ValueError, AttributeError):
        own = False
    if own or (directory / "chat_template.jinja").is_file():
        return Finding("template", Severity.OK, "It has a chat template.")
    return Finding(
        "template", Severity.NOTE, "It has no chat template; Learnloop's (ChatML with tools) stands in for it."
    )


def _read_back(tokenizer: ChatTokenizer) -> Finding:
    """Check that the reply with the call, as training would show it, is read as the same call."""
    try:
        ids, owner = tokenizer.supervised_sequence(_MESSAGES, [_TOOL])
    except BadConversation as error:
        return Finding("conversation", Severity.WARNING, f"Demonstrations cannot train it: {error}.")
    reply = tokenizer.decode([id for id, message in zip(ids, owner, strict=True) if message == _REPLY])
    calls = tokenizer.parse(reply).tool_calls
    if [(call.name, json.loads(call.arguments)) for call in calls] == [("search_inbox", _ARGUMENTS)]:
        return Finding(
            "conversation", Severity.OK, "It shows system message, tools, calls and results; calls are read back."
        )
    return Finding(
        "conversation",
        Severity.WARNING,
        f"A call as its chat template shows it is not read as a call: {reply[:120]!r}",
        "Name the tool format in a file learnloop.json in its directory, or let `learnloop bases check` find it.",
    )
