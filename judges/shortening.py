"""What is left out of a question that is too long for the judge model's context."""

from learnloop_service.environment.full_context import read_full_context
from learnloop_service.judges.llm import JudgeUnavailable

SHORTENINGS = 5
"""Number of times that a question is asked again in fewer characters."""
_ROOM = 0.8
"""Share of the context that a question takes at most, if the server says how long both are. The answer needs the
rest."""


def shortened(length: int, error: JudgeUnavailable) -> int:
    """Return the number of characters for the next try of a question of `length` characters. Raises the error if it
    says something else than that the question is too long."""
    if not error.is_too_long:
        raise error
    prompt, context = read_full_context(str(error)) or (0, 0)
    return int(length * (_ROOM * context / prompt if 0 < context < prompt else 0.5))


def without_middle(text: str, limit: int) -> str:
    """Return the text, without its middle if it is longer than the limit. What is left says how much is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters were left out here] {text[len(text) - half :]}"
