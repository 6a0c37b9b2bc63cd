"""What a base model's chat template shows of a conversation with tools, and whether a call is read back."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from learnloop_service.environment.json_type import Json
from learnloop_service.training.bases.report import Finding, FindingSeverity
from learnloop_service.training.engine.text.tokens import BadConversation, ChatTokenizer, Message

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
_SECOND_ARGUMENTS = {"keywords": ["review", "Bern"], "max_results": 1}
_SECOND_RESULT = "The review is on 3 June."


def _call_message(id: str, arguments: Json) -> Message:
    function = {"name": "search_inbox", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


_MESSAGES: list[Message] = [
    {"role": "system", "content": _SYSTEM},
    {"role": "user", "content": "When is the kickoff?"},
    _call_message("call-1", _ARGUMENTS),
    {"role": "tool", "content": _RESULT, "tool_call_id": "call-1", "name": "search_inbox"},
    {"role": "assistant", "content": "On 12 May."},
    {"role": "user", "content": "And the review?"},
    _call_message("call-2", _SECOND_ARGUMENTS),
    {"role": "tool", "content": _SECOND_RESULT, "tool_call_id": "call-2", "name": "search_inbox"},
]
_STAGES = {
    2: "a system text with a tool",
    4: "a call with its result",
    6: "a question after a call",
    8: "a second call",
}
"""What the last messages of a conversation's beginning are, by the number of messages in it."""
_CALLS = {2: _ARGUMENTS, 6: _SECOND_ARGUMENTS}
"""Arguments of the calls, by the index of their message."""


def rendered(tokenizer: ChatTokenizer) -> str:
    """Return the text of a conversation of two turns with a system message, a tool, calls and their results, as the
    model gets it, or an empty text if the template refuses it."""
    try:
        return tokenizer.decode(tokenizer.prompt(_MESSAGES, [_TOOL]))
    except BadConversation:
        return ""


def has_doubled_braces(text: str) -> bool:
    """Return whether a rendered conversation shows a call in `{{...}}`."""
    return _DOUBLED.search(text) is not None


def findings(directory: Path, tokenizer: ChatTokenizer, text: str) -> Iterator[Finding]:
    """Yield what the template shows of the conversation whose rendered text is `text`, from `rendered`."""
    yield _template(directory)
    if not text:
        yield _refused(tokenizer)
        return
    missing = [name for name, part in _PARTS.items() if part not in text]
    if missing:
        yield Finding(
            "conversation",
            FindingSeverity.WARNING,
            f"Its chat template leaves out {', '.join(missing)}.",
            "The model will act without them: take another base, or put them into the user's message.",
        )
        return
    yield _read_back(tokenizer)


_PARTS = {
    "the system message": _SYSTEM,
    "the tools": "max_results",
    "calls": '"kickoff"',
    "results": _RESULT,
    "results after the first turn": _SECOND_RESULT,
}


def _refused(tokenizer: ChatTokenizer) -> Finding:
    """Say what the template refuses first, and what will not work."""
    for count, what in _STAGES.items():
        try:
            tokenizer.prompt(_MESSAGES[:count], [_TOOL])
        except BadConversation as error:
            return Finding(
                "conversation",
                FindingSeverity.WARNING,
                f"Its chat template refuses {what}: {error}.",
                "Rollouts with that will fail: take another base, or an environment that does without.",
            )
    raise AssertionError("a conversation that was refused is refused again")


def _template(directory: Path) -> Finding:
    config = directory / "tokenizer_config.json"
    try:
        has_template = (
            bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template")) if config.is_file() else False
        )
    except (ValueError, AttributeError):
        has_template = False
    if has_template or (directory / "chat_template.jinja").is_file():
        return Finding("template", FindingSeverity.OK, "It has a chat template.")
    return Finding(
        "template", FindingSeverity.NOTE, "It has no chat template; Learnloop's (ChatML with tools) stands in for it."
    )


def _read_back(tokenizer: ChatTokenizer) -> Finding:
    """Check that the replies with calls, as training would show them, are read as the same calls."""
    try:
        ids, owner = tokenizer.supervised_sequence(_MESSAGES, [_TOOL])
    except BadConversation as error:
        return Finding("conversation", FindingSeverity.WARNING, f"Demonstrations cannot train it: {error}.")
    for index, arguments in _CALLS.items():
        reply = tokenizer.decode([id for id, message in zip(ids, owner, strict=True) if message == index])
        calls = tokenizer.parse(reply).tool_calls
        if [(call.name, json.loads(call.arguments)) for call in calls] != [("search_inbox", arguments)]:
            return Finding(
                "conversation",
                FindingSeverity.WARNING,
                f"A call as its chat template shows it is not read as a call: {reply[:120]!r}",
                "Name the tool format in a file learnloop.json in its directory, or let `learnloop bases check` find "
                "it.",
            )
    return Finding(
        "conversation",
        FindingSeverity.OK,
        "It shows two turns with system message, tools, calls and results; calls are read back.",
    )
