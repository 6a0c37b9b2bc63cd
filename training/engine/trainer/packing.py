"""How the tokens of a packed batch attend to one another."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learnloop_service.training.engine.weights.varlen_attention import Segments


@dataclass(frozen=True, slots=True, eq=False)
class Stem:
    """The beginning `tokens` [s] shared by all sequences of all `batches` batches, which is computed once."""

    tokens: Tensor
    batches: int


@dataclass(frozen=True, slots=True)
class Packing:
    """How packed tokens attend: in `segments`, over the keys at the indices `keys` ([K]; None means all in order).

    With a `stem`, keys are counted from its first token, and the batch's own tokens follow.
    """

    segments: Segments
    keys: Tensor | None
    stem: Stem | None = None

    def to(self, device: torch.device) -> "Packing":
        """Return a copy on another device. The stem's tokens are not moved."""
        keys = None if self.keys is None else self.keys.to(device)
        return replace(self, segments=self.segments.to(device), keys=keys)

    def gathered(self, tokens: Tensor, stem: Tensor | None = None) -> Tensor:
        """Gather the keys or values [K, ...] of all segments from those of the packed tokens [n, ...] and of the
        stem."""
        if stem is not None:
            tokens = torch.cat([stem, tokens])
        return tokens if self.keys is None else tokens[self.keys]
