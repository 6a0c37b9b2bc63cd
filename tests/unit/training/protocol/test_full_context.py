"""Messages about a full context, ours and other servers'."""

import pytest

from learnloop_service.environment.full_context import read_full_context
from learnloop_service.training.protocol.full_context import full_context_message

VLLM = (
    "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. "
    "Please reduce the length of the input messages."
)
OPENAI = (
    "This model's maximum context length is 4097 tokens. However, your messages resulted in 4100 tokens. "
    "Please reduce the length of the messages."
)


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (full_context_message(600, 512), (600, 512)),
        (full_context_message(600, 512, at_least=True), (600, 512)),
        (VLLM, (5000, 4096)),
        (OPENAI, (4100, 4097)),
        ("max_tokens must be at most 4096 tokens", None),
        ("", None),
    ],
)
def test_the_numbers_are_read(message: str, numbers: tuple[int, int] | None) -> None:
    assert read_full_context(message) == numbers
