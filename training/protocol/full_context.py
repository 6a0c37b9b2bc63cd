"""The message about a prompt that does not fit, in the words by which OpenAI's clients recognize it."""

import re

CODE = "context_length_exceeded"
"""Code of the error in OpenAI's format."""
_MESSAGE = re.compile(r"maximum context length is (\d+) tokens.*?(\d+) (?:input )?tokens", re.DOTALL)
"""Also matches the messages of vLLM and OpenAI."""


_FULL = re.compile(
    r"context[ _](?:length|size|window)|maximum model length|(?:prompt|input) is too long|too many (?:input )?tokens"
    r"|max_new_tokens` must be",
    re.IGNORECASE,
)
"""How servers say that a prompt does not fit: OpenAI, vLLM, SGLang, llama.cpp, Anthropic and TGI."""
_STATUSES = (400, 413, 422)


def is_full_context(status: int, code: object, message: str) -> bool:
    """Return whether an error reply to a chat request says that the conversation does not fit the model's context."""
    return code == CODE or (status in _STATUSES and _FULL.search(message) is not None)


def full_context_message(prompt_tokens: int, context: int, *, at_least: bool = False) -> str:
    """Return the message. With `at_least`, the prompt can have more tokens than `prompt_tokens`."""
    counted = f"have at least {prompt_tokens}" if at_least else f"resulted in {prompt_tokens}"
    return (
        f"This model's maximum context length is {context} tokens. However, your messages {counted} tokens, and the "
        "reply needs room as well. Please reduce the length of the messages."
    )


def read_full_context(message: str) -> tuple[int, int] | None:
    """Return the tokens of the prompt and of the context as a message states them; None if it is about something
    else."""
    found = _MESSAGE.search(message)
    return None if found is None else (int(found[2]), int(found[1]))
