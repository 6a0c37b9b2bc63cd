"""Whether a reply asks back in place of acting: it has no tool call, and its text ends in a question."""

import unicodedata
from collections.abc import Mapping

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.chat_reader import text_of

_CLOSING = frozenset({"Cc", "Cf", "Mn", "Pe", "Pf", "Pi", "Sk", "So", "Zl", "Zp", "Zs"})
"""Categories of what can follow a sentence: white space, closing marks, and emoji with their modifiers."""
_ARMENIAN = "\N{ARMENIAN QUESTION MARK}"  # inside of the sentence
_MARKUP = " \n\"'*_~\N{ARMENIAN FULL STOP}"


def asks_back(reply: Mapping[str, Json]) -> bool:
    """Return whether a chat completion, or a response of OpenAI's Responses API, asks back."""
    messages = [choice.get("message") or {} for choice in reply.get("choices") or ()] or reply.get("output") or ()
    if any(message.get("tool_calls") or message.get("type") == "function_call" for message in messages):
        return False
    return is_question("".join(text_of(message.get("content")) or "" for message in messages))


def is_question(text: str) -> bool:
    """Return whether the text ends in a question mark of any script."""
    text = text.rstrip(_MARKUP)
    while text and "QUESTION" not in _name(text) and unicodedata.category(text[-1]) in _CLOSING:
        text = text[:-1].rstrip(_MARKUP)
    is_greek = text.endswith(";") and "GREEK" in _name(text[:-1])  # mostly typed as a semicolon
    return is_greek or "QUESTION" in _name(text) or _ARMENIAN in text.rpartition("\N{ARMENIAN FULL STOP}")[2]


def _name(text: str) -> str:
    return unicodedata.name(text[-1], "") if text else ""
