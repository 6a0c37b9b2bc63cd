"""What an engine reports about a model's samples and training steps."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reproducibility:
    """Whether sampling and training with the same seed give the same weights, bit for bit, and the reason."""

    reproducible: bool
    reason: str
    fingerprint: str | None = None
    """Hash of everything besides the requests that determines the samples of one model's newest checkpoint, or None if
    it is unknown."""


@dataclass(frozen=True, slots=True)
class MeasuredToken:
    """The last of these token ids, with its log-probability given those before it: as the sampler recorded it, and of
    the trained weights before and after a step."""

    token_ids: Sequence[int]
    recorded: float
    before: float
    after: float

    @property
    def moved(self) -> float:
        """How far the step moved it."""
        return abs(self.after - self.before)
