"""Says in one sentence whether a run learned: its first held-out evaluation compared with its latest one.

The sentence never depends on the best checkpoint, which is picked for its figures and therefore hides a fall.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

from learnloop_service.environment.wording import in_words, signed
from learnloop_service.training.statistics.difference import MIN_CHANGED, SuccessDifference

HEADLINES = (("validation", "sampled"), ("test", "sampled"))
"""Split and mode of the headline figure: the first one that the run evaluates. Validation is evaluated throughout, and
always on the newest checkpoint; the test split at the end is evaluated on the best one, so it only serves runs without
validation scenarios, in which the newest checkpoint counts as the best."""


class VerdictState(StrEnum):
    """Whether the run learned."""

    LEARNED = "learned"
    GOT_WORSE = "got_worse"
    NO_CHANGE_SHOWN = "no_change_shown"
    """There may be a change, but it cannot be distinguished from chance."""
    TOO_EARLY = "too_early"
    """There is no later evaluation to compare with the first one."""
    DEMONSTRATIONS_LEARNED = "demonstrations_learned"
    """The run trained on demonstrations only, has no later evaluation, and its loss fell."""
    DEMONSTRATIONS_NOT_LEARNED = "demonstrations_not_learned"
    """The run trained on demonstrations only, has no later evaluation, and its loss did not fall."""


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The comparison of a run's first evaluation with its latest one."""

    state: VerdictState
    points: float | None
    """The latest success minus the first one, in percentage points, over the scenarios that both have."""
    interval: tuple[float, float] | None
    """The 95% interval of `points`, paired by scenario."""
    on: Mapping[str, Any] | None
    """What was compared: `split`, `mode`, `scenarios`, `first` and `latest` with `iteration`, `step` and `success`, and
    `smallest_points`. None before the baseline."""
    sentence: str
    """The same in one short sentence, without a full stop."""
    details: str
    """What `text` says besides: the interval, what was evaluated and when, the best checkpoint, causes."""
    text: str
    """Sentence and details as running text."""
    causes: tuple[str, ...]
    """Diagnosed causes."""
    losses: Mapping[str, Any] | None = None
    """Losses of a finished run on demonstrations only: `first` and `latest` in nats per token, and `held_out`, whether
    they are those on held-out demonstrations."""


def verdict(
    evaluations: Sequence[Mapping[str, Any]],
    best_step: int | None = None,
    causes: Sequence[str] = (),
    losses: Mapping[str, Any] | None = None,
) -> RunVerdict:
    """Return the verdict on a run with these evaluations, in any order, and the best checkpoint's step.

    An evaluation has `iteration`, `split`, `mode`, `step`, `scenarios`, `success`, and `difference`: the fields of a
    `SuccessDifference` from the baseline, or None. `losses` are those of a finished run on demonstrations only.
    """
    rows = headline(evaluations)
    if losses is not None and losses["first"] is not None and losses["latest"] is not None and len(rows) < 2:
        return _on_demonstrations(losses, causes)
    if not rows:
        text = _VerdictText("Too early to say: no held-out scenario has been evaluated", "", _because(causes))
        return RunVerdict(VerdictState.TOO_EARLY, None, None, None, *text.parts(), tuple(causes))
    first, latest = rows[0], rows[-1]
    latest = on_same_scenarios(first, latest)
    difference = SuccessDifference(**latest["difference"]) if latest is not first and latest["difference"] else None
    state = _state(difference, is_later=latest is not first)
    on = {name: latest[name] for name in ("split", "mode", "scenarios")} | {
        "first": _checkpoint(first),
        "latest": _checkpoint(latest) if latest is not first else None,
        "smallest_points": None if difference is None or difference.smallest is None else _points(difference.smallest),
    }
    points, interval = _figures(first, latest, difference)
    text = _sentence(state, first, latest, difference)
    text = text._replace(more=text.more + _best(rows, best_step) + _because(causes))
    return RunVerdict(state, points, interval, on, *text.parts(), tuple(causes))


class _VerdictText(NamedTuple):
    """The text of a verdict, in parts."""

    sentence: str
    basis: str
    """What it rests on, which running text has in brackets; can be empty."""
    more: str = ""
    """Further sentences, each after a space."""
    end: str = "."
    """How the running text continues after the brackets."""

    def parts(self) -> tuple[str, str, str]:
        """Return sentence, details and running text."""
        basis = f" ({self.basis})" if self.basis else ""
        stated = f"{self.basis[0].upper()}{self.basis[1:]}." if self.basis else ""
        return self.sentence, in_words(f"{stated}{self.more}".strip()), f"{self.sentence}{basis}{self.end}{self.more}"


def _on_demonstrations(losses: Mapping[str, Any], causes: Sequence[str]) -> RunVerdict:
    first, latest = losses["first"], losses["latest"]
    state = VerdictState.DEMONSTRATIONS_LEARNED if latest < first else VerdictState.DEMONSTRATIONS_NOT_LEARNED
    digits = next((digits for digits in (2, 3, 4) if f"{first:.{digits}g}" != f"{latest:.{digits}g}"), 2)
    losses_text = f"{first:.{digits}g} → {latest:.{digits}g}"
    loss, basis = ("held-out loss", "") if losses["held_out"] else ("loss while it trained", "none was held out")
    sentence = f"Demonstrations {'' if latest < first else 'not '}learned: {loss} {losses_text}"
    text = _VerdictText(sentence, basis, _because(causes))
    return RunVerdict(state, None, None, None, *text.parts(), tuple(causes), losses)


def headline(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the evaluations with the run's headline figure, in order, beginning with the baseline."""
    for split, mode in HEADLINES:
        rows = [row for row in evaluations if (row["split"], row["mode"]) == (split, mode)]
        if rows:
            return sorted(rows, key=lambda row: (row["iteration"], row["step"]))
    return []


def on_same_scenarios(first: Mapping[str, Any], later: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the later evaluation with its success on the scenarios of the baseline, if the baseline ended early."""
    difference = later.get("difference")
    if difference is None or first["scenarios"] >= later["scenarios"]:
        return later
    return {**later, "scenarios": first["scenarios"], "success": first["success"] + difference["mean"]}


def _state(difference: SuccessDifference | None, *, is_later: bool) -> VerdictState:
    if not is_later:
        return VerdictState.TOO_EARLY
    if difference is None or not difference.is_shown:
        return VerdictState.NO_CHANGE_SHOWN
    return VerdictState.LEARNED if difference.mean > 0 else VerdictState.GOT_WORSE


def _checkpoint(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("iteration", "step", "success")}


def _points(share: float) -> float:
    return round(100 * share, 1)


def _figures(
    first: Mapping[str, Any], latest: Mapping[str, Any], difference: SuccessDifference | None
) -> tuple[float | None, tuple[float, float] | None]:
    if difference is not None:
        return _points(difference.mean), (_points(difference.low), _points(difference.high))
    return (None if latest is first else _points(latest["success"] - first["success"])), None


_OPENINGS = {
    VerdictState.LEARNED: "Learned: held-out success rose from {first:.0%} to {latest:.0%}",
    VerdictState.GOT_WORSE: "Got worse: held-out success fell from {first:.0%} to {latest:.0%}",
    VerdictState.NO_CHANGE_SHOWN: "No change shown: held-out success went from {first:.0%} to {latest:.0%}",
    VerdictState.TOO_EARLY: "Too early to say: held-out success was {first:.0%} before training",
}


def _sentence(
    state: VerdictState, first: Mapping[str, Any], latest: Mapping[str, Any], difference: SuccessDifference | None
) -> _VerdictText:
    opening = _OPENINGS[state].format(first=first["success"], latest=latest["success"])
    noun = "scenario" if latest["scenarios"] == 1 else "scenarios"
    what = f"{latest['scenarios']} {latest['split']} {noun}, {latest['mode']}"
    if state is VerdictState.TOO_EARLY:
        return _VerdictText(opening, what, end=", and has not been evaluated since.")
    if difference is None:
        missing = " An earlier version evaluated it and did not keep what the interval of the difference needs."
        return _VerdictText(opening, what, missing)
    mean, low, high = (signed(100 * share) for share in (difference.mean, difference.low, difference.high))
    basis = f"95% interval {low} to {high}; {what}, paired; after iteration {latest['iteration']}"
    more = _limits(difference, latest["scenarios"]) if state is VerdictState.NO_CHANGE_SHOWN else ""
    return _VerdictText(f"{opening}, {mean} points", basis, more)


def _limits(difference: SuccessDifference, scenarios: int) -> str:
    """Return a sentence on the smallest difference that this evaluation could have shown."""
    if difference.smallest is None:
        few = "1 scenario is" if difference.scenarios == 1 else f"{difference.scenarios} scenarios are"
        if difference.scenarios < scenarios:
            few = f"Only {difference.scenarios} of them were scored both times, which is"
        return f" {few} too few to show any difference."
    if difference.low > 0 or difference.high < 0:
        return f" Only {difference.changed} of the scenarios changed; {MIN_CHANGED} are needed to tell it from chance."
    return f" The smallest difference that it could have shown is {ceil(_points(difference.smallest))} points."


def _best(rows: Sequence[Mapping[str, Any]], best_step: int | None) -> str:
    """Name the best checkpoint if it is better than the latest one."""
    best = next((row for row in rows if row["step"] == best_step), None)
    if best is None or best["success"] <= rows[-1]["success"]:
        return ""
    where = "the model before training" if best["iteration"] == 0 else f"step {best['step']}"
    return f" The best checkpoint is {where}, with {best['success']:.0%}."


def _because(causes: Sequence[str]) -> str:
    return f" Diagnosed: {', '.join(causes)}." if causes else ""
