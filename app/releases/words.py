"""What a release's figures mean, in sentences."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from learnloop_service.app.domain.release_rules import KINDS, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import LIVE, ReleaseReason, ReleaseState
from learnloop_service.app.feedback.outcomes import THUMBS_ONLY
from learnloop_service.app.releases.decision import LEAST_UNITS, GuardrailEvidence
from learnloop_service.app.releases.forecast import EFFECTS, USEFUL, Forecast
from learnloop_service.app.releases.outcome_test import OutcomeEvidence, if_silence_matters
from learnloop_service.training.statistics.two_arms import Counts, EffectEstimate

_WEEK_HOURS = 168
_CONFIRMED = {ReleaseState.PROMOTED: "So far measured on", ReleaseState.CONFIRMED: "Confirmed by"}
_SILENCE = "More is reported of users in one arm than in the other, so the effect depends on what silence is worth"
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
    ReleaseReason.HARM: "outcomes show that users are worse off with it",
    ReleaseReason.NO_GAIN: "outcomes show that it gains less than a change is worth",
    ReleaseReason.NOVELTY: "it was promoted, but in their second windows users were worse off with it",
}
_SUMMARIES = {
    ReleaseState.TRIAL: "The candidate is in its trial on held-out scenarios; no user meets it yet.",
    ReleaseState.RUNNING: "Users meet the candidate.",
    ReleaseState.HELD: "The share is held: {why}.",
    ReleaseState.PROMOTED: "The candidate was promoted.",
    ReleaseState.CONFIRMED: "The candidate was promoted, and users who had no part in that decision confirmed it.",
    ReleaseState.ROLLED_BACK: "The candidate was taken back: {why}.",
    ReleaseState.OVERTAKEN: "The name was given to another checkpoint, or withdrawn, while the release was live.",
}


def summary(state: ReleaseState, reason: ReleaseReason | None) -> str:
    """Return the state and its reason in a sentence."""
    return _SUMMARIES[state].format(why=_WHY[reason] if reason is not None else "the reason is not known")


def quality(
    rules: ReleaseRules,
    state: ReleaseState,
    cells: Mapping[str, Counts],
    outcome: OutcomeEvidence,
    units: int,
    confirmation: Sequence[EffectEstimate],
) -> str:
    """Return what a release shows about the quality of its candidate, in sentences."""
    [form] = rules.outcome
    parts = [effect_found(rules, outcome)]
    if units:
        parts.append(f"{outcome.units:,} of {units:,} windows {'are' if state in LIVE else 'were'} closed.")
    if confirmation:
        first, second = confirmation
        week = "week" if rules.window_hours == _WEEK_HOURS else "window"
        parts.append(f"{_CONFIRMED.get(state, 'Not confirmed by')} {first.units:,} new users: {_effect(first)}")
        parts[-1] += f"; in their second {week} {_effect(second)}." if second.units else "."
    if rules.goal == "guardrails":
        parts.append("Outcomes decide nothing here: guardrails are the goal of this release.")
    if form != "event" and (ends := if_silence_matters(cells)):  # without an event nothing happened, which is known
        low, high = (_interval(*end) for end in ends)
        parts.append(f"{_SILENCE}: {low} if it is worth 0, {high} if it is worth 1.")
    if form == "feedback" and (outcome.units or rules.goal != "guardrails"):
        parts.append(THUMBS_ONLY)
    return " ".join(parts)


def effect_found(rules: ReleaseRules, outcome: OutcomeEvidence) -> str:
    """Return the effect on outcomes with its interval, in a sentence."""
    if outcome.units < LEAST_UNITS:
        return "Nothing is shown about the quality of the candidate yet: too few windows are closed."
    verdict = "Neither better nor worse for users, as far as is shown"
    if outcome.low > 0:
        verdict = "Better for users"
    elif outcome.high < 0:
        verdict = "Worse for users"
    elif outcome.low > -rules.margin:
        verdict = f"Not worse for users by {100 * rules.margin:.3g} points"
    [(form, name)] = rules.outcome.items()
    what = f"`{name}`" if isinstance(name, str) else form.replace("_", " ")
    interval = _interval(outcome.low, outcome.high)
    return f"{verdict}: {100 * outcome.effect:+.1f} points of {what} (95% interval {interval}, at every look)."


def _effect(estimate: EffectEstimate) -> str:
    return f"{100 * estimate.effect:+.1f} ({_interval(estimate.low, estimate.high)})"


def _interval(low: float, high: float) -> str:
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


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
        return f"This is the last stage: {when} the candidate is promoted, whatever its outcomes show."
    unless = {
        "guardrails": "a person promotes the candidate",
        "better": "outcomes show that the candidate is better",
        "not_worse": f"outcomes show that the candidate is not worse by {100 * rules.margin:.3g} points",
    }
    end = f"every user gets the stable checkpoint again, unless {unless[rules.goal]} before"
    return f"This is the last stage: {when} {end}."


def ends_at(rules: ReleaseRules, started_at: datetime | None) -> datetime | None:
    """Return when the release's time is up; None before users meet the candidate."""
    return None if started_at is None else started_at + timedelta(days=rules.max_days)


def forecast_note(rules: ReleaseRules, forecast: Forecast, unit: str) -> str:
    """Return what the forecast number of users can show."""
    if not forecast.units_a_day:
        return f"No {unit} of the name is known from the last 14 days, so nothing can be forecast."
    shown = f"With {forecast.units_a_day:.3g} new {unit}s a day, {rules.max_days:.3g} days can show"
    smallest = forecast.shown
    if smallest is None or smallest > USEFUL:
        what = "no effect on outcomes" if smallest is None else f"{100 * smallest:+.3g} points"
        return f"{shown} {what}, so do not wait for outcomes: let a judge score new attempts at tasks instead."
    below = next((f", not {100 * effect:+.3g}" for effect in reversed(EFFECTS) if effect < smallest), "")
    begins = "is not reached in time" if forecast.days[-1] is None else f"begins after {forecast.days[-1]:.1f} days"
    return f"{shown} {100 * smallest:+.3g} points{below}. The last stage {begins} if the candidate is like stable."


def too_few(forecast: Forecast, effect: float, unit: str) -> str:
    """Return why outcomes cannot be the goal of a release, because an effect is out of reach."""
    return (
        f"Outcomes decide nothing, because {forecast.missing(effect):,.0f} {unit}s are missing to show an effect of "
        f"{100 * effect:.3g} points in time: guardrails are the goal of this release."
    )


def percent(share: float) -> str:
    """Return a share as a percentage, such as 5% or 0.5%."""
    return f"{100 * share:.3g}%"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
