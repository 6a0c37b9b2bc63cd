"""A token at which the effect of a step was measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredToken:
    """The last of these token ids, with its log-probability given those before it: as the sampler recorded it, and of
    the trained weights before and after the step."""

    token_ids: tuple[int, ...]
    recorded: float
    before: float
    after: float

    @property
    def moved(self) -> float:
        """How far the step moved it."""
        return abs(self.after - self.before)
