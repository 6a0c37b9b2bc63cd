"""How the tokens of a packed batch attend to one another."""

from dataclasses import dataclass

from torch import Tensor

from training.engine.weights.varlen_attention import Segments


@dataclass(frozen=True, slots=True)
class Packing:
    """How packed tokens attend: `segments`, over keys taken by `keys` ([K]; None: all of them, in order)."""

    segments: Segments
    keys: Tensor | None

    def gathered(self, tokens: Tensor) -> Tensor:
        """The keys or values [K, ...] of all segments from those of the packed tokens [n, ...]."""
        return tokens if self.keys is None else tokens[self.keys]
