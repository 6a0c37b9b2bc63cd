"""Which part of a model is trained."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tuning:
    """Train the whole model (`full`) or a low-rank adapter (`lora`, which the other fields describe)."""

    mode: Literal["full", "lora"] = "full"
    rank: int = 8
    alpha: int = 16
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers to adapt. Empty means all except the output head."""
