"""Recognizes the error with which a server says that a conversation does not fit a model's context."""

import re

CODE = "context_length_exceeded"
"""Code of the error in OpenAI's format."""
_FULL = re.compile(
    r"context[ _]?(?:length|size|window)|maximum (?:model|prompt) length|(?:prompt|input) is too long"
    r"|too many (?:input )?tokens|tokens? (?:count )?(?:of \d+ )?exceeds? the (?:maximum|model's)"
    r"|(?:token count|tokens) \(?\d*\)? ?exceeds the maximum|max_new_tokens` must be",
    re.IGNORECASE,
)
"""How servers say it: OpenAI, vLLM, SGLang, llama.cpp, Anthropic, Mistral, xAI, Gemini, litellm and TGI."""
_STATUSES = (400, 413, 422)
_COUNTS = re.compile(r"maximum context length is (\d+) tokens.*?(\d+) (?:input )?tokens", re.DOTALL)
"""Also matches the messages of vLLM and OpenAI."""


def is_full_context(status: int, code: object, message: str) -> bool:
    """Return whether an error reply to a chat request says that the conversation does not fit the model's context."""
    return code == CODE or (status in _STATUSES and _FULL.search(message) is not None)


def read_full_context(message: str) -> tuple[int, int] | None:
    """Return the tokens of the prompt and of the context as a message states them; None if it is about something
    else."""
    counts = _COUNTS.search(message)
    return None if counts is None else (int(counts[2]), int(counts[1]))
