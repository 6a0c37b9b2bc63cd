"""What a release's figures mean, in sentences."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from learnloop_service.app.domain.release_rules import KINDS, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseReason, ReleaseState
from learnloop_service.app.releases.decision import LEAST_UNITS, GuardrailEvidence
from learnloop_service.app.releases.forecast import FEW_A_WEEK, Forecast
from learnloop_service.app.releases.moves import NOTHING_SHOWN

_WHY = {
    ReleaseReason.TRIAL: "the trial on held-out scenarios refused the candidate or failed",
    ReleaseReason.GUARDRAIL: "it was worse than the stable checkpoint by more than a guardrail tolerates",
    ReleaseReason.BREAKER: "it failed for several users in a row, and the stable checkpoint did not",
    ReleaseReason.BACKEND_AWAY: "both arms fail, so the backend is away",
    ReleaseReason.ASSIGNMENT: (
        "far more or fewer users met the candidate than its share says, so the evidence cannot be trusted"
    ),
    ReleaseReason.TIME: "its time was up without a promotion",
    ReleaseReason.PERSON: "a person decided so",
}
_SUMMARIES = {
    ReleaseState.TRIAL: "The candidate is in its trial on held-out scenarios; no user meets it yet.",
    ReleaseState.RUNNING: "Users meet the candidate.",
    ReleaseState.HELD: "The share is held: {why}.",
    ReleaseState.PROMOTED: "The candidate was promoted.",
    ReleaseState.ROLLED_BACK: "The candidate was taken back: {why}.",
    ReleaseState.OVERTAKEN: "The name was given to another checkpoint, or withdrawn, while the release was live.",
}


def summary(state: ReleaseState, reason: ReleaseReason | None) -> str:
    """Return the state and its reason in a sentence."""
    return _SUMMARIES[state].format(why=_WHY[reason] if reason is not None else "the reason is not known")


def quality(state: ReleaseState) -> str:
    """Return what a release shows about the quality of its candidate."""
    if state is ReleaseState.PROMOTED:
        return NOTHING_SHOWN
    return (
        "Outcomes are recorded and shown, but no test on them is made: guardrails say whether the candidate does harm, "
        "not whether it is better."
    )


def lacks(
    rules: ReleaseRules,
    state: ReleaseState,
    stage: int,
    met: int,
    guardrails: Mapping[Guardrail, GuardrailEvidence],
    ends_at: datetime | None,
    unit: str,
) -> str | None:
    """Return what the next stage or the end still lacks, in one sentence; None after the release has ended."""
    if state is ReleaseState.TRIAL:
        return "Users meet the candidate when the trial on held-out scenarios has ended without refusing it."
    if state is ReleaseState.HELD:
        return f"The share stays at {percent(rules.ramp[stage])} until a person resumes the release."
    if state is not ReleaseState.RUNNING:
        return None
    if stage == len(rules.ramp) - 1:
        return _at_the_end(rules, ends_at)
    becomes = f"The share becomes {percent(rules.ramp[stage + 1])}"
    missing = LEAST_UNITS - met
    needs = [f"{missing} more {unit}{' has' if missing == 1 else 's have'} met the candidate"] if missing > 0 else []
    levels: dict[float, list[Guardrail]] = {}
    for name, evidence in guardrails.items():
        if evidence.level is not None and not evidence.passes:
            levels.setdefault(evidence.level, []).append(name)
    for level, names in sorted(levels.items()):
        called = _listed([KINDS[name].called for name in names])
        needs.append(f"an increase of {called} above {100 * level:.3g} points is ruled out")
    return f"{becomes} when {_listed(needs)}." if needs else f"{becomes} with the next look."


def _at_the_end(rules: ReleaseRules, ends_at: datetime | None) -> str:
    when = f"on {ends_at:%Y-%m-%d}" if ends_at is not None else f"after {rules.max_days:g} days"
    if rules.at_end == "promote":
        return f"This is the last stage: {when} the candidate is promoted, without evidence of its quality."
    return (
        f"This is the last stage: {when} every user gets the stable checkpoint again, unless a person promotes the "
        "candidate before."
    )


def ends_at(rules: ReleaseRules, started_at: datetime | None) -> datetime | None:
    """Return when the release's time is up; None before users meet the candidate."""
    return None if started_at is None else started_at + timedelta(days=rules.max_days)


def forecast_note(forecast: Forecast, unit: str) -> str:
    """Return what the forecast number of users can show."""
    if not forecast.units_a_day:
        return f"No {unit} of the name is known from the last 14 days, so nothing can be forecast."
    enrolled = f"About {forecast.enrolled_a_week:.0f} {unit}s a week would be enrolled in the last stage"
    if forecast.guardrails_only:
        return (
            f"{enrolled}, fewer than {FEW_A_WEEK}: guardrails are all that traffic can show, and nothing will be known "
            "about quality."
        )
    if forecast.days[-1] is None:
        return f"{enrolled}, but at this pace it is not reached in time."
    return (
        f"{enrolled}, which begins after {forecast.days[-1]:.1f} days if the candidate is like the stable checkpoint."
    )


def percent(share: float) -> str:
    """Return a share as a percentage, such as 5% or 0.5%."""
    return f"{100 * share:.3g}%"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
