"""Whatever an agent does with its history: each sampled token is trained once, after what it was sampled after."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.call_sequences import NotOneSequence, SampledCall, joined, sequences_of


def call(prompt: str, reply: str) -> SampledCall:
    return SampledCall(tuple(map(ord, prompt)), tuple(map(ord, reply)), tuple(-float(ord(letter)) for letter in reply))


def text(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids))


@st.composite
def trees(draw: st.DrawFn) -> list[SampledCall]:
    """Calls whose prompts extend, repeat, cut off or rewrite what was said before; few letters: many collide."""
    letters = st.text("ab", max_size=3)
    texts, calls = [""], []
    for _ in range(draw(st.integers(1, 8))):
        earlier = draw(st.sampled_from(texts))
        prefix = earlier[: draw(st.integers(0, len(earlier)))] if draw(st.booleans()) else earlier
        prompt, reply = prefix + draw(letters), draw(letters)
        calls.append(call(prompt, reply))
        texts += [prompt, prompt + reply]
    return calls


@given(trees())
def test_every_sampled_token_is_trained_once_after_its_context(calls: list[SampledCall]) -> None:
    sequences = [(numbers, joined([calls[number] for number in numbers])) for numbers in sequences_of(calls)]
    assert Counter(number for numbers, _ in sequences for number in numbers) == Counter(
        number for number, sampled_call in enumerate(calls) if sampled_call.reply
    )
    for numbers, sequence in sequences:
        sampled = [
            (calls[number].prompt + calls[number].reply[:index], calls[number].reply[index])
            for number in numbers
            for index in range(len(calls[number].reply))
        ]
        assert [(sequence.ids[:position], sequence.ids[position]) for position in sequence.trained] == sampled
        assert sequence.logprobs == tuple(-float(token) for _, token in sampled)
        assert sequence.ids == calls[numbers[-1]].prompt + calls[numbers[-1]].reply


@given(trees())
def test_a_call_begins_a_sequence_only_if_it_extends_none(calls: list[SampledCall]) -> None:
    for numbers in sequences_of(calls):
        before = sequences_of(calls[: numbers[0]])
        ends = [calls[earlier[-1]].prompt + calls[earlier[-1]].reply for earlier in before]
        assert not any(calls[numbers[0]].prompt[: len(end)] == end for end in ends)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("s", "a"), ("sa1", "b"), ("sa1b2", "c")], [[0, 1, 2]]),
        ([("s", "a"), ("side", "x"), ("sa1", "b")], [[0, 2], [1]]),  # a side question
        ([("s", "a"), ("s", "b")], [[0], [1]]),  # in parallel
        ([("s", "a"), ("sa1", "b"), ("sa2", "c")], [[0, 1], [2]]),  # a fork: the second branch sees `a` as context
        ([("s", "a"), ("sa1", "b"), ("S3", "c"), ("S3c4", "d")], [[0, 1], [2, 3]]),  # a summarised history
        ([("s", "a"), ("t", "a"), ("ta1", "b")], [[0], [1, 2]]),
        ([("s", ""), ("s1", "b")], [[1]]),
        ([("s", "a"), ("sa", "b")], [[0, 1]]),
        ([], []),
    ],
)
def test_what_belongs_together(calls: list[tuple[str, str]], expected: list[list[int]]) -> None:
    assert sequences_of([call(prompt, reply) for prompt, reply in calls]) == expected


def test_calls_that_do_not_extend_each_other_are_never_joined() -> None:
    with pytest.raises(NotOneSequence, match="prompt of call 1"):
        joined([call("s", "a"), call("sb1", "c")])
    assert text(joined([call("s", "a"), call("sa1", "c")]).ids) == "sa1c"
