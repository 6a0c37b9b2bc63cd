"""Work in lanes: threads that compute at the same time."""

import threading

import pytest
import torch

from learnloop_service.training.engine.lanes import Lanes


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_order(count: int) -> None:
    assert list(Lanes(count).map(lambda part: part * part, range(7))) == [0, 1, 4, 9, 16, 25, 36]


def test_lanes_work_at_the_same_time_with_one_torch_thread_each() -> None:
    met = threading.Barrier(3, timeout=30)

    def work(_: int) -> int:
        met.wait()  # breaks unless three threads meet here
        return torch.get_num_threads()

    assert list(Lanes(3).map(work, range(3))) == [1, 1, 1]


def test_nothing_computes_any_more_after_an_error() -> None:
    begun, failing = threading.Event(), threading.Event()
    ended = []

    def work(part: int) -> None:
        if part == 0:
            begun.wait(30)
            failing.set()
            raise ValueError("the first part")
        begun.set()
        failing.wait(30)
        ended.append(sum(range(1_000_000)))

    with pytest.raises(ValueError, match="the first part"):
        list(Lanes(2).map(work, range(2)))
    assert len(ended) == 1
