"""The message about a prompt that does not fit, in the words by which OpenAI's clients recognize it."""


def full_context_message(prompt_tokens: int, context: int, *, at_least: bool = False) -> str:
    """Return the message. With `at_least`, the prompt can have more tokens than `prompt_tokens`."""
    counted = f"have at least {prompt_tokens}" if at_least else f"resulted in {prompt_tokens}"
    return (
        f"This model's maximum context length is {context} tokens. However, your messages {counted} tokens, and the "
        "reply needs room as well. Please reduce the length of the messages."
    )
