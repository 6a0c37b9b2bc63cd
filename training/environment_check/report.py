"""The result of checking an environment: findings, and figures of the agents that played it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from learnloop_service.environment.base import Json


class FindingState(StrEnum):
    """The severity of a finding. Only `failed` means that something is broken."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EnvironmentFinding:
    """One thing that was checked, and the result."""

    name: str
    state: FindingState
    said: str


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What one agent earned. `mean_reward` and `success` (a share) are None if the judge scored nothing."""

    agent: str
    rollouts: int
    mean_reward: float | None
    success: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The whole result. Figures are None if they could not be measured."""

    environment: str
    judge: str | None
    scenarios: int
    agents: Sequence[AgentFigures]
    headroom: float | None
    """Mean reward of the oracle minus that of the random agent."""
    solvable: float | None
    """Share of scenarios that the oracle solves."""
    groups_without_signal: float | None
    """Share of scenarios whose 8 random rollouts all have the same reward."""
    seconds_per_rollout: float | None
    """Seconds per rollout of the random agent, without judging."""
    findings: Sequence[EnvironmentFinding]

    @property
    def broken(self) -> bool:
        """Whether any finding failed."""
        return any(finding.state is FindingState.FAILED for finding in self.findings)

    def as_json(self) -> dict[str, Json]:
        """The report as one JSON object."""
        return {**asdict(self), "broken": self.broken}
