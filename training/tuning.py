"""Which part of a model is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from learnloop_service.environment.json_type import Json

FULL_TUNING_BELOW = 1_000_000_000
"""Models with fewer parameters than this are trained in full unless a LoRA is requested."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Train the whole model (`full`) or a low-rank adapter (`lora`, which the other fields describe)."""

    mode: Literal["full", "lora"] = "full"
    rank: int = 8
    alpha: int = 16
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers to adapt. Empty means all except the output head."""

    def as_json(self) -> dict[str, Json]:
        """Return the fields that apply to the mode, as requests have them."""
        if self.mode == "full":
            return {"mode": "full"}
        return {
            "mode": "lora",
            "rank": self.rank,
            "alpha": self.alpha,
            "target_modules": list(self.target_modules),
        }

    @classmethod
    def of_json(cls, fields: Mapping[str, Json]) -> Self:
        """Return the tuning that `as_json` returned."""
        return cls(**{**fields, "target_modules": tuple(fields.get("target_modules", ()))})

    def __str__(self) -> str:
        if self.mode == "full":
            return "whole"
        modules = ", ".join(self.target_modules) or "all linear layers"
        return f"by a LoRA of rank {self.rank} and alpha {self.alpha} on {modules}"

    def equals(self, other: "Tuning") -> bool:
        """Whether both train the same weights: the fields of a LoRA and the order of its modules do not count
        otherwise."""
        if self.mode == "full":
            return other.mode == "full"
        modules = set(self.target_modules) == set(other.target_modules)
        return (self.mode, self.rank, self.alpha) == (other.mode, other.rank, other.alpha) and modules


def usual_tuning(parameters: int) -> Tuning:
    """Return how a model with this number of parameters is trained unless a request says otherwise."""
    return Tuning("full" if parameters < FULL_TUNING_BELOW else "lora")
