"""Threads of the engine that compute at the same time, each with one torch thread.

What is computed must not depend on how many there are: parts are those that would be computed one after the other.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

P = TypeVar("P")
R = TypeVar("R")


class Lanes:
    """A number of threads, which start with the first work for them. A single one is the calling thread."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._threads = ThreadPoolExecutor(count, "lane", torch.set_num_threads, (1,)) if count > 1 else None

    def map(self, work: Callable[[P], R], parts: Sequence[P]) -> Iterator[R]:
        """Yield the result of `work` for each part, in order, while those of the next parts are computed."""
        if self._threads is None or len(parts) < 2:
            yield from map(work, parts)
            return
        begun: deque[Future[R]] = deque()
        try:
            for part in parts:
                begun.append(self._threads.submit(work, part))
                if len(begun) == self.count:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            wait(begun)  # after an error nothing may still compute
