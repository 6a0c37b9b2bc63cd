"""What an examination of an environment says: findings, and figures of the agents that played it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from environment.base import Json


class State(StrEnum):
    """How a finding is to be taken. Only `failed` means that something is broken."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined, and what came of it."""

    name: str
    state: State
    said: str


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What one agent earned. Both are None where the judge scored nothing; `success` is a share."""

    agent: str
    rollouts: int
    mean_reward: float | None
    success: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. Figures are None where they could not be had."""

    environment: str
    judge: str | None
    scenarios: int
    agents: Sequence[AgentFigures]
    headroom: float | None
    """Mean reward of the oracle, less that of the random agent."""
    solvable: float | None
    """The share of the scenarios that the oracle solves."""
    groups_without_signal: float | None
    """The share of the scenarios whose 8 random rollouts all earn the same."""
    seconds_per_rollout: float | None
    """Of the random agent, without judging."""
    findings: Sequence[Finding]

    @property
    def broken(self) -> bool:
        """Whether any finding failed."""
        return any(finding.state is State.FAILED for finding in self.findings)

    def as_json(self) -> dict[str, Json]:
        """The report as one JSON object."""
        return {**asdict(self), "broken": self.broken}
