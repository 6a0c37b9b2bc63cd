"""What a judge is: it looks at all attempts at one scenario together and scores each.

A judge that cannot tell says so with a Score without a value. That is never a zero: the learn loop
leaves the attempt out and counts it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from environment.base import Json, Outcome, Scenario


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a judge sees of one rollout. `messages` are in OpenAI's form, in order."""

    id: str
    outcome: Outcome
    messages: Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict in [0, 1], or None with the reason why there is none. `parts` explain the value."""

    value: float | None
    explanation: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a score lies in [0, 1], not {self.value}")


class Judge(Protocol):
    """Scores the attempts at one scenario, one Score per attempt, in their order."""

    name: str

    async def judge(self, scenario: Scenario, attempts: Sequence[Attempt]) -> list[Score]: ...
