"""The beginning that all rows of a decode step share, which their attention reads once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from learnloop_service.training.engine.weights.paged_cache import PAGE


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A shared beginning: the first `tokens` ([1], int32) of each row are in the first pages of `table` ([pages of a
    row], int32)."""

    tokens: Tensor
    table: Tensor

    @classmethod
    def of(cls, tables: Tensor, positions: Tensor) -> "SharedPrefix":
        """Find the shared beginning, in whole pages, of rows whose tokens at 0 ... `positions` ([R]; -1 skips the row)
        are in the pages of `tables` ([R, pages of a row], int32). A row's last token is never part of it. This does not
        synchronize with the device."""
        active = positions >= 0
        table = tables.index_select(0, active.int().argmax()[None])[0]
        alike = ((tables == table) | ~active[:, None]).all(dim=0)
        pages = torch.minimum(alike.int().cumprod(0).sum(), torch.where(active, positions // PAGE, len(table)).min())
        return cls((pages * PAGE).int()[None], table)

    def without_tokens(self) -> "SharedPrefix":
        """Return an empty beginning, for attention that does not reach back to it."""
        return SharedPrefix(torch.zeros_like(self.tokens), self.table)
