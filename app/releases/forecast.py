"""Forecasts how long a release takes: when each stage is reached if the candidate is like the stable checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from learnloop_service.app.domain.release_rules import KINDS, Guardrail, ReleaseRules
from learnloop_service.app.releases.decision import GATE_ERROR, LEAST_UNITS, level_of
from learnloop_service.training.statistics.two_arms import Cell, below, expected_counts, users_needed

USEFUL = 0.10
"""An effect that must be within reach, or outcomes are not worth waiting for."""
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.15, 0.20)
_MOST_VARIANCE = 0.25
"""Variance of an outcome in [0, 1] of which nothing is known."""
_MOST_UNITS = 10_000_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """What to expect. Days count from the beginning of the traffic."""

    units_a_day: float
    enrolled_a_week: float
    """Units that are enrolled in a week of the last stage, in both arms together."""
    days: Sequence[float | None]
    """When each stage of the ramp begins; None if it is not reached within `max_days`."""
    windows: float
    """Windows of enrolled units that close within `max_days`, if most of them are in the last stage."""
    variance: float

    @property
    def shown(self) -> float | None:
        """The smallest effect that these windows show in most cases; None if they show none."""
        return next((effect for effect in EFFECTS if self.missing(effect) <= 0), None)

    def missing(self, effect: float) -> float:
        """Return how many windows are missing to show the effect, which itself adds to what hardly varies."""
        return users_needed(max(self.variance, effect * (1 - effect) / 2), effect) - self.windows


def forecast_of(rules: ReleaseRules, baseline: Mapping[str, Any]) -> Forecast:
    """Return the forecast for a name whose new units and outcomes before the release are in `baseline`."""
    units_a_day, variance = baseline["users"] / baseline["days"], baseline.get("variance")
    enrolled_a_week = 7 * units_a_day * min(1.0, 2 * rules.ramp[-1])
    days: list[float | None] = [0.0]
    counts: dict[Guardrail, dict[Cell, float]] = {name: {} for name in rules.guardrails}
    for stage, share in enumerate(rules.ramp[:-1]):
        units = _units_needed(rules, stage, counts)
        began = days[-1]
        at = None if began is None or units is None or not units_a_day else began + units / units_a_day
        days.append(at if at is not None and at <= rules.max_days else None)
        for name, cells in counts.items():
            cells |= expected_counts(share, KINDS[name].usual, units or 0.0)
    closing = max(0.0, rules.max_days - rules.window_hours / 24) * enrolled_a_week / 7
    return Forecast(units_a_day, enrolled_a_week, days, closing, _MOST_VARIANCE if variance is None else variance)


def _units_needed(rules: ReleaseRules, stage: int, before: Mapping[Guardrail, Mapping[Cell, float]]) -> float | None:
    """Return how many units a stage takes to pass its gate."""
    low, high = LEAST_UNITS / rules.ramp[stage], float(_MOST_UNITS)
    if _passes(rules, stage, before, low):
        return low
    if not _passes(rules, stage, before, high):
        return None
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if _passes(rules, stage, before, middle) else (middle, high)
    return high


def _passes(rules: ReleaseRules, stage: int, before: Mapping[Guardrail, Mapping[Cell, float]], units: float) -> bool:
    for name, earlier in before.items():
        kind, level = KINDS[name], level_of(rules, stage, name)
        assert level is not None  # only stages before the last one are asked about
        expected = {**earlier, **expected_counts(rules.ramp[stage], kind.usual, units)}
        if below(expected, level, kind.mean) < -log(GATE_ERROR):
            return False
    return True
