"""Who takes a training step: one trainer alone, or several that share its sequences and add up their gradients.

Everything but the sequences is the same for all of them: weights, optimizer state, and so the step that they take.
"""

import itertools
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from training.engine.sampling.cache_slots import common_prefix

T = TypeVar("T")


class TrainerLost(Exception):
    """A trainer of the step ended, or left it; the model is unchanged. It can be tried again."""


class WeightsDiffer(Exception):
    """The trainers of a step do not have the same weights after it; the model is unchanged."""


class Peers(Protocol):
    """The trainers of a step, as one of them sees it. All of them call the same methods in the same order; what waits
    for the others yields `progress` meanwhile. Those methods raise TrainerLost."""

    @property
    def writes(self) -> bool:
        """Whether this trainer writes the checkpoint."""

    def share(self, ids: Sequence[Sequence[int]]) -> Sequence[int]:
        """The numbers of the sequences that are this trainer's."""

    def totals(self, values: Sequence[float], progress: T) -> Generator[T, None, list[float]]:
        """Each value, added up over all trainers."""

    def joined(self, rows: Tensor, progress: T) -> Generator[T, None, Tensor]:
        """The columns [k, n] of all trainers, one after the other."""

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter], progress: T) -> Generator[T, None, None]:
        """Give each parameter the sum of its gradients."""

    def compare(self, digest: int, progress: T) -> Generator[T, None, None]:
        """Raises WeightsDiffer if the digests of the trainers are not all the same."""


class Alone:
    """One trainer, which has everything."""

    writes = True

    def share(self, ids: Sequence[Sequence[int]]) -> Sequence[int]:
        return range(len(ids))

    def totals(self, values: Sequence[float], progress: T) -> Generator[T, None, list[float]]:
        yield from ()
        return list(values)

    def joined(self, rows: Tensor, progress: T) -> Generator[T, None, Tensor]:
        yield from ()
        return rows

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter], progress: T) -> Generator[T, None, None]:
        yield from ()

    def compare(self, digest: int, progress: T) -> Generator[T, None, None]:
        yield from ()


def shares(ids: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The numbers of the sequences, in `count` parts of which the largest is as small as can be.

    They are cut in the order of their tokens, as they are packed: what neighbours begin with alike is computed once in
    each part.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in ids]
    order = sorted(range(len(ids)), key=lambda number: tuple(ids[number]))
    shared = [0, *(common_prefix(arrays[one], arrays[other]) for one, other in itertools.pairwise(order))]

    def parts(most: int) -> list[list[int]]:
        """As few as hold at most so many tokens each."""
        found: list[list[int]] = []
        size = most
        for number, begun in zip(order, shared, strict=False):
            own = len(ids[number]) - begun
            if size + own > most:
                found.append([])
                size, own = 0, len(ids[number])
            found[-1].append(number)
            size += own
        return found

    low, high = max(map(len, ids), default=0), sum(map(len, ids))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(parts(middle)) <= count else (middle + 1, high)
    found = parts(high)
    return [sorted(part) for part in [*found, *[[]] * (count - len(found))]]


@torch.no_grad()
def digest(parameters: Iterable[torch.nn.Parameter]) -> int:
    """A number that tells weights apart: any difference in any bit changes it, but for rare coincidences. 63 bits."""
    found = 0
    for parameter in parameters:
        for start, piece in enumerate(torch.split(parameter.detach().flatten(), _PIECE)):
            bits = piece.contiguous().view(torch.int32).long()
            places = torch.arange(1, len(bits) + 1, device=bits.device)
            found = found * _FACTOR + start + int((bits * places).sum()) + int(bits.sum())
    return found % (1 << 63)


_PIECE = 1 << 24
_FACTOR = 1_000_003
