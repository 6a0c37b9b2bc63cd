"""Trainers that share a step: who gets which sequences, and what they add up."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from learnloop_service.training.engine.trainer.peers import TrainerLost, WeightsDiffer, digest, shares
from learnloop_service.training.engine.workers.link import TrainingGroup
from learnloop_service.training.engine.workers.trainers import Trainers

CPU = torch.device("cpu")
Outcomes = list[Any]


def finished(work: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


@pytest.fixture
def together(tmp_path: Path) -> Callable[[Callable[[Trainers, int], Any]], Outcomes]:
    """Runs a function in two trainers, one thread for either, and returns the results or errors."""

    def trainer(rank: int, work: Callable[[Trainers, int], Any]) -> Any:
        try:  # one may leave while the other still meets it
            trainers = Trainers(TrainingGroup(rank, 2, "127.0.0.1", f"file://{tmp_path}/group"), CPU)
            return work(trainers, rank)
        except Exception as error:
            return error

    def run(work: Callable[[Trainers, int], Any]) -> Outcomes:
        with ThreadPoolExecutor(2) as threads:
            return [future.result() for future in [threads.submit(trainer, rank, work) for rank in range(2)]]

    return run


def test_every_sequence_is_shared_out_once() -> None:
    ids = [[7] * 50 + [group] * 20 + [member] * 10 for group in range(4) for member in range(4)]
    halves = shares(ids, 2)
    assert sorted(number for half in halves for number in half) == list(range(len(ids)))
    assert halves == [list(range(8)), list(range(8, 16))]  # no group is cut
    assert [len(part) for part in shares(ids[:1], 3)].count(1) == 1
    assert shares([], 2) == [[], []]


def test_what_trainers_add_up(together: Callable[[Callable[[Trainers, int], Any]], Outcomes]) -> None:
    def work(trainers: Trainers, rank: int) -> Any:
        parameters = [torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3)]
        parameters[0].grad = torch.full((2, 3), 1.0 + rank)
        if rank == 1:  # the other one's share did not touch it
            parameters[1].grad = torch.full((2, 3), 5.0)
        totals = finished(trainers.totals([1.5, rank], None))
        joined = finished(trainers.joined(torch.full((2, 1 + rank), float(rank)), None))
        finished(trainers.add_gradients(parameters, None))
        finished(trainers.compare(digest(parameters), None))
        return (
            totals,
            joined.tolist(),
            [parameter.grad if parameter.grad is None else parameter.grad.tolist() for parameter in parameters],
        )

    gradients = [[[3.0] * 3] * 2, [[5.0] * 3] * 2, None]
    assert together(work) == [([3.0, 1.0], [[0.0, 1.0, 1.0]] * 2, gradients)] * 2


def test_weights_that_differ_are_told(together: Callable[[Callable[[Trainers, int], Any]], Outcomes]) -> None:
    def work(trainers: Trainers, rank: int) -> Any:
        weights = torch.ones(1000)
        weights[999] += rank * 1e-7
        finished(trainers.compare(digest([torch.nn.Parameter(weights)]), None))

    assert all(isinstance(outcome, WeightsDiffer) for outcome in together(work))


def test_places_count_in_a_digest() -> None:
    one, other = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 3.0])
    assert digest([torch.nn.Parameter(one)]) != digest([torch.nn.Parameter(other)])


def test_a_trainer_that_left_is_not_waited_for(together: Callable[[Callable[[Trainers, int], Any]], Outcomes]) -> None:
    gone = threading.Event()

    def work(trainers: Trainers, rank: int) -> Any:
        if rank == 1:
            gone.set()
            return "left"  # and with it the group is dropped
        gone.wait()
        return finished(trainers.totals([1.0], None))

    lost, _ = together(work)
    assert isinstance(lost, TrainerLost)
