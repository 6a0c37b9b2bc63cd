"""The keys and values of many conversations in pages of a few tokens, as in vLLM (Kwon et al. 2023).

A row takes only the pages that its conversation fills, grows without being moved, and shares the pages of a common
beginning with other rows. A shared page is copied before one of its rows writes to it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from learnloop_service.training.engine.memory import uploaded
from learnloop_service.training.engine.weights.kv_cache import KVShape, Piece
from learnloop_service.training.engine.weights.stages import stages_of

PAGE = 64
"""Number of tokens per page."""


class OutOfPages(MemoryError):
    """Every page is in use."""


class PagedCache:
    """Keys and values per layer, [tokens of all pages, kv_heads, head_dim]. A row's table lists its pages.

    The first page belongs to no row. Rows that are not decoded now write there.
    """

    def __init__(self, shape: KVShape, rows: int, length: int, pages: int) -> None:
        """Allocate `pages` pages for `rows` rows of up to `length` tokens. Raises MemoryError or OutOfMemoryError."""
        self.shape = shape
        self.rows = rows
        self.length = length
        self.pages = pages
        size = ((pages + 1) * PAGE, shape.kv_heads, shape.head_dim)
        stages = shape.stages or stages_of(shape.layers, [shape.device])
        self._parts = tuple(
            torch.zeros((2, len(stage.layers), *size), dtype=shape.dtype, device=stage.device) for stage in stages
        )
        self.layers = tuple(pair for keys, values in self._parts for pair in zip(keys, values, strict=True))
        # The last column is never filled, because a full row has no page for its next token.
        self._tables: npt.NDArray[np.int32] = np.zeros((rows, pages_of(length) + 1), dtype=np.int32)
        self._device_tables = {
            stage.device: torch.zeros(self._tables.shape, dtype=torch.int32, device=stage.device) for stage in stages
        }
        self._stale = False
        self.held: npt.NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        """Number of pages of each row."""
        self._users: npt.NDArray[np.int64] = np.zeros(pages + 1, dtype=np.int64)
        self._free = list(range(pages, 0, -1))

    @property
    def bytes(self) -> int:
        """Memory that the cache takes."""
        return (self.pages + 1) * PAGE * self.shape.bytes_per_token

    def tokens_in(self, lengths: npt.NDArray[np.int64]) -> int:
        """Return how many tokens the pages in use have room for."""
        return (self.pages - self.free) * PAGE

    def tables(self, device: torch.device) -> torch.Tensor:
        """Return each row's page numbers [rows, pages of a row], int32, on one of its devices; always the same tensor
        there."""
        if self._stale:
            for tables in self._device_tables.values():
                tables.copy_(uploaded(self._tables, tables.device))
            self._stale = False
        return self._device_tables[device]

    def places(self, row: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the places of a row's tokens from `start` to `stop`."""
        tokens = np.arange(start, stop)
        pages: npt.NDArray[np.int64] = self._tables[row, tokens // PAGE].astype(np.int64)
        return pages * PAGE + tokens % PAGE

    def hold(self, row: int, start: int, stop: int) -> None:
        """Let a row keep `start` tokens and have room up to `stop`, in pages that only it writes. Raises OutOfPages."""
        if stop > self.length:
            raise OutOfPages(f"the cache holds conversations of {self.length} tokens")
        self._trim(row, pages_of(stop))
        for number in range(start // PAGE, int(self.held[row])):
            if self._users[page := int(self._tables[row, number])] > 1:
                private = self._take()
                if retained := start - number * PAGE if number == start // PAGE else 0:
                    for part in self._parts:
                        part[:, :, private * PAGE : private * PAGE + retained] = part[
                            :, :, page * PAGE : page * PAGE + retained
                        ]
                self._users[page] -= 1
                self._tables[row, number] = private
        while self.held[row] < pages_of(stop):
            self._tables[row, self.held[row]] = self._take()
            self.held[row] += 1

    def unready(self, rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the rows that, at their lengths, lack a private page for the next token."""
        ready: npt.NDArray[np.bool_] = self._users[self._tables[rows, lengths // PAGE]] == 1
        return rows[~ready]

    def missing(self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> int:
        """Return an upper bound of the pages that `hold` would take for all of these rows."""
        whole, page_counts = starts // PAGE, self.held[rows]
        column = np.arange(page_counts.max(initial=0))
        inside = (column >= whole[:, None]) & (column < page_counts[:, None])
        private = (self._users[self._tables[rows, : len(column)]] == 1) & inside
        return int(np.maximum(-(-stops // PAGE) - whole - private.sum(axis=1), 0).sum())

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def room(self, busy: Sequence[int], row: int, tokens: int) -> int:
        """Return the number of pages that are used neither by `busy` rows nor by the first `tokens` tokens of `row`."""
        tables = [self._tables[busy_row, : self.held[busy_row]] for busy_row in busy]
        return self.pages - len(np.unique(np.concatenate([*tables, self._tables[row, : tokens // PAGE]])))

    def copy(self, source: int, target: int, length: int) -> None:
        """Give row `target` the first `length` tokens of row `source` by sharing their pages."""
        self.forget(target)
        count = pages_of(length)
        self._tables[target, :count] = self._tables[source, :count]
        self._users[self._tables[target, :count]] += 1
        self.held[target] = count

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange two rows."""
        for column in (self._tables, self.held):
            column[[one, other]] = column[[other, one]]
        self._stale = True

    def forget(self, row: int) -> None:
        """Release a row's pages."""
        self._trim(row, 0)

    def clear(self, row: int) -> None:
        """Release a row's pages after a computation that was not finite. Its values can stay, because a row reads only
        what it holds."""
        self.forget(row)

    def _trim(self, row: int, count: int) -> None:
        for page in self._tables[row, count : self.held[row]].tolist():
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
        self._tables[row, count : self.held[row]] = 0
        self.held[row] = min(count, self.held[row])
        self._stale = True

    def _take(self) -> int:
        if not self._free:
            raise OutOfPages("every page of the cache is in use")
        page = self._free.pop()
        self._users[page] = 1
        self._stale = True
        return page


def pages_of(tokens: int) -> int:
    """Return the number of pages that `tokens` tokens fill."""
    return -(-tokens // PAGE)


def layout(cache: PagedCache, pieces: Sequence[Piece]) -> tuple[npt.NDArray[np.int64], ...]:
    """Return each new token's position in its sequence [n] and place in the cache [n], and the places of all keys
    [K]."""
    positions = [np.arange(piece.start, piece.start + len(piece.ids)) for piece in pieces]
    past = [cache.places(piece.row, 0, piece.start + len(piece.ids)) for piece in pieces]
    places = [all_places[piece.start :] for piece, all_places in zip(pieces, past, strict=True)]
    return tuple(np.concatenate(parts) for parts in (positions, places, past))


def places_of(tables: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the places [R] of the tokens at `positions` ([R]) of rows with these `tables` ([R, pages of a row]). A row
    whose position is -1 gets one on the page that belongs to no row."""
    stand = positions.clamp(min=0)
    pages = tables.gather(1, (stand // PAGE)[:, None])[:, 0].long()
    return torch.where(positions < 0, 0, pages * PAGE + stand % PAGE)
