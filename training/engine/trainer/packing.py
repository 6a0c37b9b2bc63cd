"""How the tokens of a packed batch attend to one another."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from training.engine.weights.varlen_attention import Segments


@dataclass(frozen=True, slots=True, eq=False)
class Stem:
    """What all sequences of all batches begin with, `tokens` [s]: computed once, for so many `batches`."""

    tokens: Tensor
    batches: int


@dataclass(frozen=True, slots=True)
class Packing:
    """How packed tokens attend: `segments`, over keys taken by `keys` ([K]; None: all of them, in order).

    With a `stem`, keys are counted from its first token, and the batch's own tokens follow.
    """

    segments: Segments
    keys: Tensor | None
    stem: Stem | None = None

    def to(self, device: torch.device) -> "Packing":
        """The same on another device, but for the stem's tokens."""
        keys = None if self.keys is None else self.keys.to(device)
        return replace(self, segments=self.segments.to(device), keys=keys)

    def gathered(self, tokens: Tensor, stem: Tensor | None = None) -> Tensor:
        """The keys or values [K, ...] of all segments from those of the packed tokens [n, ...] and of the stem's."""
        if stem is not None:
            tokens = torch.cat([stem, tokens])
        return tokens if self.keys is None else tokens[self.keys]
