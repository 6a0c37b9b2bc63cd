"""Which demonstrations an iteration trains on, and with which learning rates."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any, cast

import pytest

from learnloop_service.training.backends.base import SupervisedRequest
from learnloop_service.training.journal import IterationJournal, NoJournal
from learnloop_service.training.loop.warm_start import RunDemonstrations, iterations_of
from learnloop_service.training.types import WarmStartConfig


def lesson(record: RunDemonstrations, iteration: int, step: int) -> SupervisedRequest:
    """What an iteration trains on. A record of demonstrations needs no policy."""
    request = asyncio.run(record.lesson(IterationJournal(NoJournal(), iteration, {}), cast(Any, None), step)).request
    assert isinstance(request, SupervisedRequest)
    return request


def plan(count: int, seed: int = 0, **options: Any) -> tuple[RunDemonstrations, int]:
    options = {"epochs": 2, "held_out": 0.1, "demonstrations_per_iteration": None, "batch_size": 4} | options
    total = iterations_of(count, options["epochs"], options["held_out"], options["demonstrations_per_iteration"])
    demonstrations = [{"messages": [{"role": "assistant", "content": str(number)}]} for number in range(count)]
    return RunDemonstrations(WarmStartConfig(total, **options), seed, demonstrations), total


@pytest.mark.parametrize("per_iteration", [None, 1, 7, 18, 100])
def test_every_demonstration_comes_once_an_epoch(per_iteration: int | None) -> None:
    warm_start, total = plan(20, demonstrations_per_iteration=per_iteration)
    requests = [lesson(warm_start, iteration, iteration - 1) for iteration in range(1, total + 1)]
    trained = [str(demonstration["id"]) for request in requests for demonstration in request.demonstrations]
    assert all(request.demonstrations for request in requests)
    assert set(Counter(trained[:18]).values()) == set(Counter(trained[18:]).values()) == {1}
    assert trained[:18] != trained[18:], "the order is drawn anew"
    held_out = {str(demonstration["id"]) for demonstration in requests[0].held_out}
    assert len(held_out) == 2
    assert not held_out & set(trained)
    assert all(request.held_out == requests[0].held_out for request in requests)
    assert [request.expected_step for request in requests] == list(range(total))


def test_the_seed_decides_the_order() -> None:
    assert lesson(plan(20)[0], 1, 0) == lesson(plan(20)[0], 1, 0)
    assert lesson(plan(20)[0], 1, 0) != lesson(plan(20, seed=1)[0], 1, 0)


def test_the_learning_rate_rises_and_falls_once_over_all_iterations() -> None:
    warm_start, total = plan(100, held_out=0.0, demonstrations_per_iteration=30, learning_rate=1.0, batch_size=8)
    rates = [rate for iteration in range(1, total + 1) for rate in lesson(warm_start, iteration, 0).learning_rates]
    assert len(rates) == 6 * 4 + 3
    assert max(rates) == rates[2] == 1.0
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert all(before > after > 0 for before, after in pairwise(rates[2:]))


@pytest.mark.parametrize(
    ("count", "epochs", "held_out", "per_iteration", "expected"),
    [(10, 1, 0.0, None, 1), (10, 3, 0.5, None, 3), (10, 1, 0.1, 4, 3), (1, 2, 0.5, None, 2), (2, 1, 0.5, 1, 1)],
)
def test_the_number_of_iterations(
    count: int, epochs: int, held_out: float, per_iteration: int | None, expected: int
) -> None:
    assert iterations_of(count, epochs, held_out, per_iteration) == expected
