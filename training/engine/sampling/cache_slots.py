"""Tracks which conversation each cache row holds, and chooses the row for a new request."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MATCHED_FIRST = 256
"""Number of tokens of each row that are first compared with a prompt. Rows that match are compared over twice the
length, and so on."""


@dataclass(frozen=True, slots=True)
class Match:
    """The row that shares the longest beginning with a prompt, and its length in tokens."""

    row: int
    tokens: int


class CacheSlots:
    """Bookkeeping of a cache. For each row it has the tokens whose keys and values the row holds, the owner whose
    weights computed them, and whether the row is in use.

    The first `decoding` rows are decoded together; the others only keep conversations that wait for their next turn.
    """

    def __init__(self, rows: int, decoding: int, length: int) -> None:
        self.decoding = decoding
        self.tokens: npt.NDArray[np.int64] = np.full((rows, length), -1, dtype=np.int64)
        self.owners: npt.NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.lengths: npt.NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.busy: npt.NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._used: npt.NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._clock = 0

    def touch(self, row: int) -> None:
        """Mark the row as just used."""
        self._clock += 1
        self._used[row] = self._clock

    def match(self, prompt: npt.NDArray[np.int64], owner: int) -> Match:
        """Find the longest common prefix of the prompt and any row of that owner. Ties go to the row whose use disturbs
        others least."""
        shared = np.zeros(len(self.tokens), dtype=np.int64)
        rows = np.flatnonzero((self.owners == owner) & (self.lengths > 0))
        start, stop, width = 0, MATCHED_FIRST, min(len(prompt), self.tokens.shape[1])
        while len(rows) and start < width:  # most rows differ early
            stop = min(stop, width)
            differ = self.tokens[rows, start:stop] != prompt[start:stop]
            whole = ~differ.any(axis=1)
            shared[rows] = start + np.where(whole, stop - start, differ.argmax(axis=1))
            rows, start, stop = rows[whole & (self.lengths[rows] > stop)], stop, 2 * stop
        shared = np.minimum(shared, self.lengths)
        # Among equals, prefer a row that the prompt merely continues, because it can be used in place.
        row = int(np.lexsort((self.busy, self.lengths, -shared))[0])
        return Match(row, int(shared[row]))

    def eviction_candidate(self, *, stash: bool = False, spare: int = -1) -> int | None:
        """Return an idle row to overwrite: an empty one, else the least recently used, or None if all are busy or
        `spare`.

        `stash` selects from the rows that only keep conversations, otherwise from those that are decoded.
        """
        region = slice(self.decoding, None) if stash else slice(0, self.decoding)
        idle = np.flatnonzero(~self.busy[region]) + (region.start or 0)
        idle = idle[idle != spare]
        if len(idle) == 0:
            return None
        return int(idle[np.lexsort((self._used[idle], self.lengths[idle] > 0))[0]])

    def least_recently_used(self, among: npt.NDArray[np.bool_]) -> int | None:
        """Return the least recently used of the idle rows among these, or None if all are busy."""
        idle = np.flatnonzero(~self.busy & among)
        return int(idle[self._used[idle].argmin()]) if len(idle) else None

    def move(self, source: int, target: int, length: int) -> None:
        """Record that `target` now holds the first `length` tokens of `source`."""
        self.tokens[target, :length] = self.tokens[source, :length]
        self.owners[target] = self.owners[source]
        self.lengths[target] = length
        self._used[target] = self._used[source]

    def swap(self, one: int, other: int) -> None:
        """Record that two rows swapped places."""
        length = int(max(self.lengths[one], self.lengths[other]))  # rows are as long as the model's context
        for column in (self.tokens[:, :length], self.owners, self.lengths, self.busy, self._used):
            column[[one, other]] = column[[other, one]]

    def order(self) -> npt.NDArray[np.int64]:
        """Return all rows: first the busy ones, then the idle ones, each from the most to the least recently used."""
        return np.lexsort((-self._used, ~self.busy))

    def take(self, old: "CacheSlots", keep: npt.NDArray[np.int64]) -> None:
        """Take over the kept rows of a smaller or shorter cache, in that order."""
        self.tokens[: len(keep), : old.tokens.shape[1]] = old.tokens[keep]
        for name in ("owners", "lengths", "busy", "_used"):
            getattr(self, name)[: len(keep)] = getattr(old, name)[keep]
        self._clock = old._clock


def common_prefix(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """Return the length of the common prefix of two sequences."""
    width = min(len(one), len(other))
    differ = np.flatnonzero(one[:width] != other[:width])
    return int(differ[0]) if len(differ) else width
