"""The engine's processes, as `--workers` names them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workers:
    """The engine's processes, and how many steps old rollouts can be."""

    samplers: int
    trainers: int
    """Number of trainer processes; with 0 the samplers also train."""
    staleness: int

    @classmethod
    def named(cls, text: str) -> "Workers":
        """Parse `1`, `2`, `1+1` or `1+1:1`. Raises ValueError."""
        processes, _, staleness = text.partition(":")
        samplers, _, trainers = processes.partition("+")
        return cls(int(samplers), int(trainers or 0), int(staleness or 0))

    @property
    def flags(self) -> str:
        """The engine's flags for these workers."""
        if self.trainers:
            return f"--samplers {self.samplers} --trainers {self.trainers}"
        return f"--workers {self.samplers}"
