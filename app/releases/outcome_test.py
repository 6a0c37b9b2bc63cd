"""The outcome test: whether users are better off with the candidate, from counts of closed windows alone.

Every claim can be looked at all the time. Evidence is the natural logarithm of a bet's wealth.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log

from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.training.statistics.two_arms import (
    Cell,
    Counts,
    EffectEstimate,
    above,
    below,
    effect_estimate,
    effect_interval,
    merged,
)

REPORTED, SILENT = "reported", "silent"
"""Names under which the outcomes are counted of units of which anything, or nothing, was reported in time."""
USUAL = 0.5
"""Outcome that is expected of a unit without a forecast."""
PROMOTED_FROM = -log(0.025)
"""Evidence that promotes a candidate."""
RETURNED_FROM = -log(0.05)
"""Evidence that takes a candidate back: a wrong return costs less."""
_INTERVAL_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class OutcomeEvidence(EffectEstimate):
    """What closed windows say of the effect on the mean outcome, with an interval that holds at every look."""

    better: float
    """Evidence that the effect is above 0, or above -`margin`."""
    harm: float
    """Evidence that the effect is below that."""
    no_gain: float
    """Evidence that the effect is below what a change is worth."""


def outcomes_of(cells: Mapping[str, Counts], silence: float | None = None) -> Counts:
    """Return the counts of all outcomes, as if each silent unit had the outcome `silence`, if it is set."""
    silent = cells.get(SILENT, {})
    return merged(cells.get(REPORTED, {}), silent if silence is None else _with_value(silent, silence))


def weigh_outcomes(rules: ReleaseRules, cells: Mapping[str, Counts]) -> OutcomeEvidence:
    """Return what the counts say."""
    counts = outcomes_of(cells)
    low, high = effect_interval(counts, USUAL, _INTERVAL_ERROR)
    estimate = asdict(effect_estimate(counts, USUAL)) | {"low": low, "high": high}
    better, harm = above(counts, -rules.margin, USUAL), below(counts, -rules.margin, USUAL)
    return OutcomeEvidence(**estimate, better=better, harm=harm, no_gain=below(counts, rules.worth, USUAL))


def if_silence_matters(cells: Mapping[str, Counts]) -> list[tuple[float, float]]:
    """Return the intervals of the effect if silence were worth 0 and 1; none unless the arms are shown to differ in how
    many units are reported."""
    both = ((cells.get(REPORTED, {}), 1.0), (cells.get(SILENT, {}), 0.0))
    shares = merged(*(_with_value(counts, value) for counts, value in both))
    if max(above(shares, 0.0, USUAL), below(shares, 0.0, USUAL)) < -log(_INTERVAL_ERROR / 2):
        return []
    return [effect_interval(outcomes_of(cells, silence), USUAL, _INTERVAL_ERROR) for silence in (0.0, 1.0)]


def _with_value(counts: Counts, value: float) -> Counts:
    return merged(*({Cell(cell.probability, cell.candidate, value): units} for cell, units in counts.items()))
