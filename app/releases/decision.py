"""Decides on a release: a pure function of its rules, its stage, counts of what users met, and the time.

In this order: the breaker, the guardrails and harm to outcomes take the candidate back; if units do not meet the arms
with their probabilities, or if both arms fail, the release is held; in the last stage outcomes promote the candidate;
without a gain, or after `max_days`, it ends; a stage whose gate is passed leads to the next one; otherwise the share
stays. Outcomes decide only if that is the release's goal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log

from learnloop_service.app.domain.release_rules import KINDS, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseReason, ReleaseState
from learnloop_service.app.releases.outcome_test import (
    PROMOTED_FROM,
    RETURNED_FROM,
    OutcomeEvidence,
    outcomes_of,
    weigh_outcomes,
)
from learnloop_service.training.statistics.two_arms import ArmMean, Counts, above, arm_mean, below, evidence_of_bias

ALARM_ERROR = 0.01
"""Probability that any guardrail takes a harmless candidate back, however often one looks. They share it equally."""
GATE_ERROR = 0.05
"""Probability that one guardrail's increase is called ruled out although it is not."""
ASSIGNMENT_ERROR = 0.001
"""Probability that a release is held for its assignment although the coin between its arms is fair."""
LEAST_UNITS = 30
"""Number of units that must meet the candidate in a stage before the next one."""
FAILURES_IN_A_ROW = 3
"""Least number of the candidate's newest units that must all have failed for the breaker."""
BREAKER_ERROR = 1e-7
"""Accepted probability that a candidate like the stable checkpoint meets the breaker. Among thousands of units some
fail in a row by chance: of units that fail with 4%, three in a row occur once in 16,000 and five once in 10 million."""
_FAILING, _PRIOR_UNITS = 0.02, 50
"""Failure rate that is assumed of the stable arm before anything is known, and how many units it counts as."""


class ReleaseVerdict(StrEnum):
    """What is to happen to the release."""

    ROLL_BACK = "roll_back"
    PROMOTE = "promote"
    NEXT_STAGE = "next_stage"
    HOLD = "hold"
    """It waits for a person."""
    KEEP = "keep"
    """The share stays as it is."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What the breaker decides by: the newest failures of the candidate, and the stable arm's in the same time."""

    in_a_row: int = 0
    """Number of the candidate's newest units that all failed: an error, or a malformed reply."""
    stable_units: int = 0
    """Number of units with the stable checkpoint since the first of these failures."""
    stable_failed: int = 0
    """Number of those units that failed."""


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """What a decision depends on."""

    state: ReleaseState
    stage: int
    met: int
    """Number of units that met the candidate in this stage."""
    counts: Mapping[str, Counts]
    failures: Failures
    days: float
    """How long users can have met the candidate."""
    outcome: OutcomeEvidence | None = None
    """What an earlier look found, if no outcome is new."""


@dataclass(frozen=True, slots=True)
class GuardrailEvidence:
    """What the counts say about one guardrail. Evidence is the natural logarithm of a bet's wealth."""

    tolerance: float
    candidate: ArmMean
    stable: ArmMean
    harm: float
    """Evidence that the candidate is worse by more than the tolerance."""
    harm_threshold: float
    level: float | None
    """Increase that must be ruled out to leave this stage; None in the last one."""
    ruled_out: float | None
    """Evidence that the increase is below that level."""
    ruled_out_threshold: float

    @property
    def alarms(self) -> bool:
        """Whether it takes the candidate back."""
        return self.harm >= self.harm_threshold

    @property
    def passes(self) -> bool:
        """Whether it lets the release leave this stage."""
        return self.ruled_out is not None and self.ruled_out >= self.ruled_out_threshold


@dataclass(frozen=True, slots=True)
class ReleaseDecision:
    """What is to happen, why, and the evidence for it."""

    verdict: ReleaseVerdict
    reason: ReleaseReason | None
    guardrails: Mapping[Guardrail, GuardrailEvidence]
    outcome: OutcomeEvidence


def decide(rules: ReleaseRules, facts: ReleaseFacts) -> ReleaseDecision:
    """Return what is to happen to a release whose users meet the candidate. A held one can only be rolled back."""
    guardrails = {name: weigh(rules, facts.stage, name, facts.counts.get(name, {})) for name in rules.guardrails}
    outcome = facts.outcome or weigh_outcomes(rules, facts.counts)
    verdict, reason = _verdict(rules, facts, guardrails, outcome)
    return ReleaseDecision(verdict, reason, guardrails, outcome)


def _verdict(
    rules: ReleaseRules,
    facts: ReleaseFacts,
    guardrails: Mapping[Guardrail, GuardrailEvidence],
    outcome: OutcomeEvidence,
) -> tuple[ReleaseVerdict, ReleaseReason | None]:
    tripped = _breaker(facts)
    if tripped is ReleaseReason.BREAKER:
        return ReleaseVerdict.ROLL_BACK, tripped
    biased, by_outcomes = is_biased(facts.counts), rules.goal != "guardrails"
    alarms = any(evidence.alarms for evidence in guardrails.values())
    if alarms or (by_outcomes and outcome.harm >= RETURNED_FROM):
        harm = ReleaseReason.GUARDRAIL if alarms else ReleaseReason.HARM
        return ReleaseVerdict.ROLL_BACK, ReleaseReason.ASSIGNMENT if biased else harm
    if facts.state is not ReleaseState.RUNNING:
        return ReleaseVerdict.KEEP, None
    if biased:
        return ReleaseVerdict.HOLD, ReleaseReason.ASSIGNMENT
    if tripped is ReleaseReason.BACKEND_AWAY:
        return ReleaseVerdict.HOLD, tripped
    is_last = facts.stage >= len(rules.ramp) - 1
    if by_outcomes and is_last and outcome.better >= PROMOTED_FROM:
        return ReleaseVerdict.PROMOTE, ReleaseReason.OUTCOME
    if rules.goal == "better" and outcome.no_gain >= RETURNED_FROM:
        return ReleaseVerdict.ROLL_BACK, ReleaseReason.NO_GAIN
    if facts.days >= rules.max_days:
        return ReleaseVerdict.PROMOTE if rules.at_end == "promote" else ReleaseVerdict.ROLL_BACK, ReleaseReason.TIME
    if not is_last and facts.met >= LEAST_UNITS and all(evidence.passes for evidence in guardrails.values()):
        return ReleaseVerdict.NEXT_STAGE, None
    return ReleaseVerdict.KEEP, None


def _breaker(facts: ReleaseFacts) -> ReleaseReason | None:
    """Return the reason to stop if the candidate's newest units failed in a row, unless nothing is known of the stable
    arm in the same time. If at least half of that failed as well, the backend is away."""
    failures = facts.failures
    if not failures.stable_units or failures.in_a_row < FAILURES_IN_A_ROW:
        return None
    if 2 * failures.stable_failed >= failures.stable_units:
        return ReleaseReason.BACKEND_AWAY
    return ReleaseReason.BREAKER if failures.in_a_row >= failures_needed(facts.counts) else None


def is_biased(counts: Mapping[str, Counts]) -> bool:
    """Return whether units met the candidate with another probability than the recorded one, on which all evidence
    rests. Errors tell, because every first answer has a value for them, and so do outcomes."""
    parts = (counts.get(Guardrail.ERROR, {}), outcomes_of(counts))
    return any(evidence_of_bias(part) >= -log(ASSIGNMENT_ERROR) for part in parts)


def failures_needed(counts: Mapping[str, Counts]) -> int:
    """Return how many failures in a row are more than chance, given how often the stable checkpoint fails."""
    arms = [arm_mean(counts.get(name, {}), candidate=False) for name in (Guardrail.ERROR, Guardrail.MALFORMED)]
    units = max(arm.units for arm in arms)
    failed = sum(arm.units * (arm.mean or 0.0) for arm in arms)
    rate = min(0.5, (failed + _FAILING * _PRIOR_UNITS) / (units + _PRIOR_UNITS))
    return max(FAILURES_IN_A_ROW, ceil(log(BREAKER_ERROR) / log(rate)))


def weigh(rules: ReleaseRules, stage: int, name: Guardrail, counts: Counts) -> GuardrailEvidence:
    """Return what the counts say about one guardrail."""
    tolerance, usual = rules.guardrails[name], KINDS[name].mean
    level = level_of(rules, stage, name)
    return GuardrailEvidence(
        tolerance=tolerance,
        candidate=arm_mean(counts, candidate=True),
        stable=arm_mean(counts, candidate=False),
        harm=above(counts, tolerance, usual),
        harm_threshold=-log(ALARM_ERROR / len(rules.guardrails)),
        level=level,
        ruled_out=None if level is None else below(counts, level, usual),
        ruled_out_threshold=-log(GATE_ERROR),
    )


def level_of(rules: ReleaseRules, stage: int, name: Guardrail) -> float | None:
    """Return the increase of a guardrail that must be ruled out to leave a stage; None for the last one."""
    if stage >= len(rules.ramp) - 1:
        return None
    share = rules.ramp[stage]
    level = 0.20 if share < 0.05 else 0.10 if share < 0.20 else 0.05
    return max(level, rules.guardrails[name])
