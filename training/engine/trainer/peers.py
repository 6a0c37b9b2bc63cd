"""The trainers of a training step: one alone, or several that share its sequences and add up their gradients.

Everything but the sequences is the same for all of them: weights, optimizer state, and therefore the step that they
take.
"""

import itertools
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from learnloop_service.training.engine.sampling.cache_slots import common_prefix

T = TypeVar("T")


class TrainerLost(Exception):
    """A trainer of the step has ended or left it. The model is unchanged, and the step can be retried."""


class WeightsDiffer(Exception):
    """The trainers of a step have different weights after it. The model is unchanged."""


class Peers(Protocol):
    """The trainers of a step as one of them sees it. All must call the same methods in the same order. Methods that
    wait for the others yield `progress` in the meantime and raise TrainerLost."""

    @property
    def writes(self) -> bool:
        """Whether this trainer writes the checkpoint."""

    def share(self, ids: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return the numbers of this trainer's sequences."""

    def totals(self, values: Sequence[float], progress: T) -> Generator[T, None, list[float]]:
        """Sum each value over all trainers."""

    def joined(self, rows: Tensor, progress: T) -> Generator[T, None, Tensor]:
        """Concatenate the columns [k, n] of all trainers."""

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter], progress: T) -> Generator[T, None, None]:
        """Replace each parameter's gradient by the sum over all trainers."""

    def compare(self, digest: int, progress: T) -> Generator[T, None, None]:
        """Raise WeightsDiffer if the trainers' digests are not all equal."""


class Alone:
    """A single trainer, which has all sequences."""

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
    """Split the sequences' numbers into `count` parts whose largest is as small as possible.

    The cuts follow the order of the tokens, as packing does, so that each part computes the beginning shared by
    neighbours only once.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in ids]
    order = sorted(range(len(ids)), key=lambda number: tuple(ids[number]))
    shared = [0, *(common_prefix(arrays[one], arrays[other]) for one, other in itertools.pairwise(order))]

    def parts(most: int) -> list[list[int]]:
        """Split into as few parts of at most `most` tokens as possible."""
        cut: list[list[int]] = []
        size = most
        for number, begun in zip(order, shared, strict=False):
            added = len(ids[number]) - begun
            if size + added > most:
                cut.append([])
                size, added = 0, len(ids[number])
            cut[-1].append(number)
            size += added
        return cut

    low, high = max(map(len, ids), default=0), sum(map(len, ids))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(parts(middle)) <= count else (middle + 1, high)
    cut = parts(high)
    return [sorted(part) for part in [*cut, *[[]] * (count - len(cut))]]


@torch.no_grad()
def digest(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Return a 63-bit digest of weights. A difference in any bit changes it, except for rare coincidences."""
    accumulated = 0
    for parameter in parameters:
        for start, piece in enumerate(torch.split(parameter.detach().flatten(), _PIECE)):
            bits = piece.contiguous().view(torch.int32).long()
            places = torch.arange(1, len(bits) + 1, device=bits.device)
            accumulated = accumulated * _FACTOR + start + int((bits * places).sum()) + int(bits.sum())
    return accumulated % (1 << 63)


_PIECE = 1 << 24
_FACTOR = 1_000_003
