"""The name of a trainable model (PROJECT/NAME) or of one of its checkpoints (PROJECT/NAME@STEP)."""

import re
from dataclasses import dataclass, replace
from typing import Self

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_MODEL_NAME = re.compile(rf"(?P<project>{_PART})/(?P<name>{_PART})(?:@(?P<step>[0-9]{{1,9}}))?")


@dataclass(frozen=True, slots=True)
class ModelName:
    """Name of a model, or of its checkpoint at `step`."""

    project: str
    name: str
    step: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PROJECT/NAME or PROJECT/NAME@STEP. Raises ValueError for anything else."""
        match = _MODEL_NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a model's name; it looks like PROJECT/NAME or PROJECT/NAME@STEP")
        step = match["step"]
        return cls(match["project"], match["name"], None if step is None else int(step))

    def at(self, step: int | None) -> Self:
        """Return the name of the model's checkpoint at a step, or of the model itself if None."""
        return replace(self, step=step)

    def __str__(self) -> str:
        at = "" if self.step is None else f"@{self.step}"
        return f"{self.project}/{self.name}{at}"
