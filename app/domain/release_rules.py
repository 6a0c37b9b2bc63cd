"""The rules of a release as stored: complete, with all defaults filled in."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from learnloop_service.environment.json_type import Json


class Guardrail(StrEnum):
    """What is watched of the answers that each arm gives. Each is a value in [0, 1] for a unit; more is worse."""

    MALFORMED = "malformed"
    """1 if the answer had a malformed tool call or could not be parsed."""
    ERROR = "error"
    """1 if the request failed."""
    SLOW = "slow"
    """1 if it took longer than the stable checkpoint's 95th percentile when the release began."""
    COST = "cost"
    """Its sampled tokens divided by four times the stable checkpoint's mean, at most 1."""
    THUMBS_DOWN_1H = "thumbs_down_1h"
    """1 if a thumbs down came within an hour."""
    ASKS_BACK = "asks_back"
    """1 if the answer had no tool call and ended in a question."""


@dataclass(frozen=True, slots=True)
class GuardrailKind:
    """What is known of a guardrail before a release."""

    tolerance: float
    """Default of the increase that is tolerated."""
    usual: Mapping[float, float]
    """Probabilities of the values that are usual. The better their mean fits the stable arm, the fewer users a verdict
    needs; the verdict is valid anyway."""
    called: str
    """What increases as the guardrail gets worse, as a noun in sentences."""

    @property
    def mean(self) -> float:
        """Mean of the usual values."""
        return sum(value * rate for value, rate in self.usual.items())


def _rate(of_ones: float) -> Mapping[float, float]:
    return {1.0: of_ones, 0.0: 1 - of_ones}


KINDS: Mapping[Guardrail, GuardrailKind] = {
    Guardrail.MALFORMED: GuardrailKind(0.02, _rate(0.02), "malformed replies"),
    Guardrail.ERROR: GuardrailKind(0.02, _rate(0.02), "errors"),
    Guardrail.SLOW: GuardrailKind(0.05, _rate(0.05), "slow replies"),
    Guardrail.COST: GuardrailKind(0.05, {0.125: 0.5, 0.375: 0.5}, "cost"),
    Guardrail.THUMBS_DOWN_1H: GuardrailKind(0.05, _rate(0.05), "thumbs down within an hour"),
    Guardrail.ASKS_BACK: GuardrailKind(0.05, _rate(0.05), "questions asked back"),
}
RAMP = (0.05, 0.2, 0.5)
"""Default shares of the stages."""
OUTCOME: Mapping[str, Json] = {"feedback": {"thumbs_up": 1.0, "none": 0.5, "thumbs_down": 0.0}}
"""Default of what the outcome of a unit is."""


class ReleaseRules(BaseModel):
    """Everything that decides on a release besides what its users do."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    ramp: tuple[float, ...]
    """Share of each stage: the probability, in (0, 0.5], that a user meets the candidate. Rising."""
    guardrails: Mapping[Guardrail, float]
    """Tolerance of each guardrail that is watched, in (0, 1)."""
    outcome: Mapping[str, Json]
    """What the outcome of a unit is: `{"feedback": {"thumbs_up", "none", "thumbs_down"}}`, `{"event": TYPE}`,
    `{"session_reward": [LOW, HIGH]}` or `{"value": NAME}`."""
    window_hours: float
    """How long after its first answer a unit's outcome is frozen."""
    max_days: float
    """How long users meet the candidate at most."""
    at_end: Literal["return", "promote"]
    """What happens after `max_days` without an alarm."""
    skip_trial: bool
    """Whether it had no trial on held-out scenarios."""
    goal: Literal["guardrails", "better", "not_worse"] = "guardrails"
    """What promotes the candidate: nothing but `at_end`, or outcomes that show an effect above 0 or above -`margin`."""
    margin: float = 0.0
    """How much worse, in [0, 1), an outcome can be with the goal `not_worse`; 0 with the others."""
    worth: float = 0.03
    """With the goal `better`, a candidate whose effect is shown to be below this is taken back."""

    @classmethod
    def parse(cls, rules: Mapping[str, Json]) -> Self:
        """Parse the JSON column."""
        return cls.model_validate(rules)
