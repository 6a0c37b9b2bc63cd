"""Masks of constrained replies: whoever has a slow grammar waits for it alone, and the tokens are the same."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from learnloop_service.training.engine.sampling.constraint import Bits
from learnloop_service.training.engine.sampling.masks import MaskThreads, ReplyMasks
from learnloop_service.training.engine.sampling.requests import GrammarFailed, Sample, SampleCancelled, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.weights.weights import Weights, snapshot
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.engine.sample_requests import Packed, mixed_requests, outcomes, prompt_of, request, sampler_of, samples

TIMEOUT_S = 60
VOCABULARY = 320


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return snapshot(AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model"))))


class Scripted:
    """A grammar whose masks let half of the tokens through, others after each. `pause` is called for each mask."""

    text = "scripted"

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        self.pause = pause

    def begin(self) -> "ScriptedConstraint":
        return ScriptedConstraint(self.pause)


class ScriptedConstraint:
    error = ""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self._taken: list[int] = []

    def allowed(self) -> Bits:
        self._pause()
        return np.packbits(np.random.default_rng(self._taken).random(VOCABULARY) < 0.5, bitorder="little")

    def take(self, token: int) -> bool:
        self._taken.append(token)
        return True


class Gate:
    """Masks stop at it. Ends in an error rather than never."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)

    def __call__(self) -> None:
        assert self._passes.acquire(timeout=TIMEOUT_S), "sampling waits for this mask"

    def let_pass(self, masks: int = 1) -> None:
        if masks:
            self._passes.release(masks)

    def open(self) -> None:
        self._passes.release(100_000)


@pytest.fixture
def gate() -> Iterator[Gate]:
    closed = Gate()
    yield closed
    closed.open()


def constrained(sample_request: SampleRequest, grammar: Any) -> SampleRequest:
    return replace(sample_request, grammar=grammar)


def alone(weights: Weights, sample_request: SampleRequest) -> tuple[list[int], list[float]]:
    """The reply of a request whose masks take no time."""
    [sample] = samples(sampler_of(weights), [constrained(sample_request, sample_request.grammar and Scripted())])
    return sample.ids, sample.logprobs


def submit(sampler: Sampler, sample_request: SampleRequest) -> list[Sample | Exception]:
    """Submit a request, and return the list that its outcome is appended to."""
    outcome: list[Sample | Exception] = []
    sampler.submit(sample_request, None, outcome.append)
    return outcome


def step_until(sampler: Sampler, outcome: list[Sample | Exception]) -> None:
    while not outcome:
        sampler.step()


@pytest.mark.parametrize("packed", [False, True])
def test_others_end_while_the_first_mask_of_a_reply_is_computed(weights: Weights, gate: Gate, packed: bool) -> None:
    sampler = sampler_of(Packed(weights) if packed else weights, cache_bytes=1 << 26)
    slow = constrained(request(prompt_of(20), 12, seed=3), Scripted(gate))
    plain = request(prompt_of(30), 20, seed=4)
    slow_outcome = submit(sampler, slow)
    for quick in (plain, constrained(plain, Scripted())):
        other = submit(sampler, quick)
        step_until(sampler, other)
        assert isinstance(other[0], Sample)
        assert (other[0].ids, other[0].logprobs) == alone(weights, quick)
    assert not slow_outcome
    gate.open()
    step_until(sampler, slow_outcome)
    assert isinstance(slow_outcome[0], Sample)
    assert (slow_outcome[0].ids, slow_outcome[0].logprobs) == alone(weights, slow)


@pytest.mark.parametrize("packed", [False, True])
def test_replies_that_wait_for_masks_give_their_places_to_others(weights: Weights, gate: Gate, packed: bool) -> None:
    sampler = sampler_of(Packed(weights) if packed else weights, slots=2, cache_bytes=1 << 26)
    slow = [constrained(request(prompt_of(20), 12, seed=seed), Scripted(gate)) for seed in range(4)]
    slow_outcomes = [submit(sampler, sample_request) for sample_request in slow]
    plain = [request(prompt_of(30 + length), 20, seed=4) for length in range(3)]
    for sample_request, sample in zip(plain, _outcomes_of(sampler, plain), strict=True):
        assert (sample.ids, sample.logprobs) == alone(weights, sample_request)
    assert not any(slow_outcomes)
    gate.open()
    for sample_request, outcome in zip(slow, slow_outcomes, strict=True):
        step_until(sampler, outcome)
        assert isinstance(outcome[0], Sample)
        assert (outcome[0].ids, outcome[0].logprobs) == alone(weights, sample_request)


def _outcomes_of(sampler: Sampler, requests: list[SampleRequest]) -> list[Sample]:
    submitted = [submit(sampler, sample_request) for sample_request in requests]
    for outcome in submitted:
        step_until(sampler, outcome)
    return [outcome[0] for outcome in submitted if isinstance(outcome[0], Sample)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("packed", [False, True])
def test_when_masks_come_changes_no_token(weights: Weights, gate: Gate, packed: bool, seed: int) -> None:
    """Requests come and are cancelled at any time, share little memory, and wait for their masks or do not."""
    draw = random.Random(seed)
    requests = [
        constrained(sample_request, draw.choice([None, Scripted(), Scripted(gate)]))
        for sample_request in mixed_requests(30)
    ]
    waiting = list(range(len(requests)))
    slots, cache_bytes = draw.choice([3, 8, 20]), draw.choice([1, 1 << 20, 1 << 26])
    sampler = sampler_of(Packed(weights) if packed else weights, slots=slots, cache_bytes=cache_bytes)
    outcome_of: dict[int, Sample | Exception] = {}
    numbers: list[int] = []
    while sampler.busy or waiting:
        for _ in range(min(len(waiting), draw.choice([0, 0, 1, 6]))):
            index = waiting.pop()
            numbers.append(sampler.submit(requests[index], None, partial(outcome_of.__setitem__, index)))
        if numbers and draw.random() < 0.02:
            sampler.cancel(draw.choice(numbers))
        gate.let_pass(draw.choice([0, 1, 4]))
        sampler.step()
    assert len(outcome_of) == len(requests)
    for index, sample_request in enumerate(requests):
        outcome = outcome_of[index]
        if isinstance(outcome, Sample):
            assert (outcome.ids, outcome.logprobs) == alone(weights, sample_request)
        else:
            assert isinstance(outcome, SampleCancelled)


def test_a_grammar_that_takes_more_than_its_time_ends_its_reply_alone(weights: Weights) -> None:
    slow = replace(constrained(request(prompt_of(20), 12), Scripted()), grammar_s=-1.0)
    plain = request(prompt_of(30), 20, seed=4)
    ended, other = outcomes(sampler_of(weights), [slow, plain])
    assert isinstance(ended, GrammarFailed)
    assert "too slow to enforce" in str(ended)
    assert isinstance(other, Sample)
    assert (other.ids, other.logprobs) == alone(weights, plain)


@pytest.mark.parametrize("error", [GrammarFailed("too many states"), BaseException("a panic")])
def test_a_grammar_that_fails_ends_its_reply_alone(weights: Weights, error: BaseException) -> None:
    count = iter(range(3))

    def fail_at_the_fourth() -> None:
        if next(count, None) is None:
            raise error

    failing = constrained(request(prompt_of(20), 12), Scripted(fail_at_the_fourth))
    plain = request(prompt_of(30), 20, seed=4)
    tokens: list[int] = []
    sampler = sampler_of(weights)
    ended: list[Sample | Exception] = []
    sampler.submit(failing, lambda token, logprob: tokens.append(token), ended.append)
    other = submit(sampler, plain)
    step_until(sampler, other)
    step_until(sampler, ended)
    assert isinstance(ended[0], Exception)
    assert str(ended[0]) == str(error)
    assert len(tokens) == 3
    assert isinstance(other[0], Sample)
    assert (other[0].ids, other[0].logprobs) == alone(weights, plain)


def test_the_reply_that_has_taken_least_time_is_served_first(gate: Gate) -> None:
    order: list[str] = []
    all_served = threading.Event()
    threads = MaskThreads(threads=1)

    def masks(name: str, spent_s: float, then: Callable[[], None] = lambda: None) -> ReplyMasks:
        def pause() -> None:
            order.append(name)
            then()

        grammar: Any = Scripted(pause)
        reply_masks = ReplyMasks(grammar, threads, 100.0)
        reply_masks.spent_s = spent_s
        return reply_masks

    masks("under way", 9.0, gate).begin()
    for name, spent_s in (("slow", 3.0), ("slower", 5.0), ("new", 0.0)):
        masks(name, spent_s, all_served.set if name == "slower" else lambda: None).begin()
    gate.let_pass()
    assert all_served.wait(TIMEOUT_S)
    assert order == ["under way", "new", "slow", "slower"]
