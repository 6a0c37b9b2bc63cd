"""Prompts wait for one another while others' replies are decoded on a GPU, but not long, and never for nothing."""

import itertools
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learnloop_service.training.engine.sampling import gathering
from learnloop_service.training.engine.sampling.gathering import MOST_S, Gathering
from learnloop_service.training.engine.sampling.requests import SampleRequest
from tests.fakes.cuda_kernels import cuda_weights
from tests.unit.engine.adapter_batches import Base, assert_as_alone, prompt_of, sampler_of

STEP_S = 1 / 512  # seconds that add up exactly


class Clock:
    """Every look at it takes a step's time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count()
        for module in ("gathering", "admission"):
            time = SimpleNamespace(perf_counter=lambda: next(ticks) * STEP_S)
            monkeypatch.setattr(f"learnloop_service.training.engine.sampling.{module}.time", time)


def steps_waited(gathering: Gathering, prompts: int, active: int) -> int:
    return sum(1 for _ in itertools.takewhile(lambda _: gathering.waits(prompts, active), range(10_000)))


@pytest.mark.parametrize(
    ("pass_steps", "prompts", "active", "waited"),
    [
        (4, 1, 1, 8),  # half of the rows wait, so each step loses half of its time
        (4, 3, 1, 6),
        (1, 1, 3, 4),
        (100, 1, 1, int(MOST_S / STEP_S) + 1),
        (4, 1, 1_000, int(MOST_S / STEP_S) + 1),
    ],
)
def test_a_prompt_waits_until_as_much_is_lost_as_a_pass_takes(
    pass_steps: int, prompts: int, active: int, waited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    gathering = Gathering()
    gathering.passed(pass_steps * STEP_S)
    gathering.passed(1_000 * STEP_S)  # compiled kernels
    for _ in range(2):  # the next prompts begin anew
        assert steps_waited(gathering, prompts, active) == waited


def test_nothing_waits_where_nothing_is_decoded_or_no_row_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    gathering = Gathering()
    gathering.passed(10 * STEP_S)
    assert not gathering.waits(5, 0)
    assert not gathering.waits(0, 5)
    assert gathering.waits(1, 5)
    assert not gathering.waits(1, 0)  # the others ended meanwhile


def test_turns_that_end_one_by_one_are_prefilled_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the same replies as alone, in less than half of the passes."""
    Clock(monkeypatch)
    base = Base(tmp_path, cuda_weights(monkeypatch), 2)
    members = {"agent": base.weights(0)}
    passes: list[int] = []
    prefill = members["agent"].prefill

    def counted(cache: Any, pieces: Any) -> None:
        passes.append(len(pieces))
        prefill(cache, pieces)

    monkeypatch.setattr(members["agent"], "prefill", counted)

    def passes_of_conversations() -> int:
        """Eight conversations of three turns with replies of different lengths."""
        sampler = sampler_of(members, slots=8)
        requests: list[SampleRequest] = []
        samples: list[Any] = []

        def ask(number: int, turn: int) -> None:
            prompt = prompt_of(20 + 30 * turn, seed=number)
            request = SampleRequest(prompt, "agent", 4 + (5 * number + 3 * turn) % 13, seed=number)
            sampler.submit(request, None, partial(record, request, number, turn))

        def record(request: SampleRequest, number: int, turn: int, sample: Any) -> None:
            requests.append(request)
            samples.append(sample)
            if turn < 2:
                ask(number, turn + 1)

        for number in range(8):
            ask(number, 0)
        passes.clear()
        while sampler.busy:
            sampler.step()
        count = len(passes)
        assert len(samples) == 24
        assert_as_alone(members, requests, samples)
        return count

    gathered = passes_of_conversations()
    monkeypatch.setattr(gathering, "MOST_S", 0.0)
    assert gathered < passes_of_conversations() / 2
