"""What of a model is trained."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tuning:
    """All of the model (`full`) or a low-rank adapter (`lora`; the other fields are its)."""

    mode: Literal["full", "lora"] = "full"
    rank: int = 8
    alpha: int = 16
    target_modules: tuple[str, ...] = ()
    """Names of linear layers; empty for all of them but the output head."""
