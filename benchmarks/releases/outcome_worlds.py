"""Simulated releases whose users report what became of an answer: late, by outcome, and while everything drifts.

Units come on 60 days, fewer on weekends, and have a window of 10 days. Whether an answer helps depends on the person,
the kind of question, the weekend, a base that rises by about 12 points, and the arm. Of good outcomes 85% are reported,
of bad ones 55%; silence counts 0.5. A fifth of the persons have two keys and can be in both arms. One unit is a bot,
which is always content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from learnloop_service.app.feedback.forecast import Features, fit

DAYS, WINDOW = 60, 10
"""Days on which units come, and length of a window in days."""
_BEFORE = 70
"""How many days before the release the outcomes begin that are known when it starts; a multiple of 7."""
_START = datetime(2026, 3, 2, tzinfo=UTC)
_KINDS = np.array([-0.8, -0.3, 0.3, 0.8])
_SILENCE = 0.5
_REPORTED = (0.85, 0.55)
"""Shares of the good and of the bad outcomes that are reported."""
_PENALTY, _PRIOR = 20.0, 2
"""Those of app/feedback/forecast.py, whose regression is computed here for many releases in one go."""

_Floats = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SimulatedRelease:
    """What happens to the units of a release, in the order in which they come."""

    day: npt.NDArray[np.int64]
    candidate: _Flags
    outcome: _Floats
    reported: _Flags
    second: _Floats
    """The outcome in a second window."""
    before: _Floats
    """An outcome of each unit before the release."""
    earlier: npt.NDArray[np.int64]
    earlier_sum: _Floats
    kind: npt.NDArray[np.int64]
    effects: tuple[float, float]
    """True effects on the mean of what is recorded in the first and in the second window."""

    @property
    def looks(self) -> Sequence[int]:
        """Numbers of units whose windows are closed at each daily look."""
        return [int(count) for count in np.searchsorted(self.day, np.arange(DAYS), "right")]


def simulated(rng: np.random.Generator, units: int, effect: float, novelty: float = 0.0) -> SimulatedRelease:
    """Draw a release whose candidate changes success by `effect`, and by `novelty` more in the first window only."""
    persons = int(units / 1.2)
    who = np.concatenate([np.arange(persons), np.arange(units - persons)])
    kind, week = rng.integers(4, size=units), np.where(np.arange(DAYS) % 7 < 5, 1.0, 0.4)
    day = np.sort(rng.choice(DAYS, units, p=week / week.sum()))
    base = -0.7 + rng.normal(0, 1.4, persons)[who] + _KINDS[kind] - 0.4 * (day % 7 > 4) + 0.015 * day
    stable = _sigmoid(base)
    earlier = rng.poisson(3, units) * ((rng.random(units) < 0.7) & (np.arange(units) < persons))
    earlier_sum = rng.binomial(earlier, _recorded_mean(stable)).astype(float)
    candidate, slope = rng.random(units) < 0.5, (stable * (1 - stable)).mean()
    first, later = (_sigmoid(base + shift / slope) for shift in (effect + novelty, effect))
    outcome, reported = _recorded(rng, np.where(candidate, first, stable))
    second, _ = _recorded(rng, np.where(candidate, later, stable))
    before, _ = _recorded(rng, _sigmoid(base - 0.015 * (day + 15)))
    outcome[units // 3] = second[units // 3] = reported[units // 3] = 1.0
    effects = tuple(float((_recorded_mean(p) - _recorded_mean(stable)).mean()) for p in (first, later))
    return SimulatedRelease(
        day, candidate, outcome, reported, second, before, earlier, earlier_sum, kind, (effects[0], effects[1])
    )


def forecasts(release: SimulatedRelease) -> _Floats:
    """Return what was expected of each unit on its day, by the time before and by windows that were closed, rounded as
    it is stored."""
    expected = np.zeros(len(release.day))
    for today in range(DAYS):
        now = release.day == today
        expected[now] = _fitted(release, today, now)
    return np.round(expected * 20) / 20


def largest_difference(release: SimulatedRelease, today: int) -> float:
    """Return by how much forecasts of that day differ from those of the service's own regression."""
    closed, now = (np.flatnonzero(days) for days in (release.day < today - WINDOW, release.day == today))
    rows = [(_features(release, unit, -_BEFORE), release.before[unit]) for unit in range(len(release.day))]
    rows += [(_features(release, unit, 0), release.outcome[unit]) for unit in closed.tolist()]
    forecast = fit(rows)
    own = [forecast.expected(_features(release, unit, 0)) for unit in now.tolist()]
    return float(np.abs(np.array(own) - _fitted(release, today, now)).max(initial=0.0))


def _features(release: SimulatedRelease, unit: int, shift: int) -> Features:
    earlier = int(release.earlier[unit])
    at = _START + timedelta(days=int(release.day[unit]) + shift)
    return Features(at, earlier == 0, earlier, float(release.earlier_sum[unit]), kind=str(release.kind[unit]))


def _fitted(release: SimulatedRelease, today: int, now: npt.NDArray[np.int64] | _Flags) -> _Floats:
    closed = release.day < today - WINDOW
    outcomes = np.concatenate([release.before, release.outcome[closed]])
    mean, since = outcomes.mean(), -_BEFORE + int(release.day.min())
    whole = np.ones(len(release.day), bool)
    table = np.concatenate([_columns(release, whole, mean, since, -_BEFORE), _columns(release, closed, mean, since, 0)])
    sums = table.T @ table + _PENALTY * np.eye(table.shape[1])
    weights = np.linalg.solve(sums, table.T @ (outcomes - mean))
    expected: _Floats = np.clip(mean + _columns(release, now, mean, since, 0) @ weights, 0.0, 1.0)
    return expected


def _columns(
    release: SimulatedRelease, which: npt.NDArray[np.int64] | _Flags, mean: float, since: int, shift: int
) -> _Floats:
    earlier, day = release.earlier[which], release.day[which]
    shrunk = (release.earlier_sum[which] + _PRIOR * mean) / (earlier + _PRIOR) - mean
    numbers = [np.ones(len(day)), 4 * shrunk, np.log1p(earlier), earlier == 0, day % 7 > 4, (day + shift - since) / 60]
    return np.column_stack([*numbers, np.eye(4)[release.kind[which]]]).astype(float)


def _recorded(rng: np.random.Generator, chance: _Floats) -> tuple[_Floats, _Flags]:
    good = rng.random(len(chance)) < chance
    reported = rng.random(len(chance)) < np.where(good, *_REPORTED)
    return np.where(reported, good, _SILENCE).astype(float), reported


def _recorded_mean(chance: _Floats) -> _Floats:
    of_good, of_bad = _REPORTED
    mean: _Floats = chance * (of_good + (1 - of_good) * _SILENCE) + (1 - chance) * (1 - of_bad) * _SILENCE
    return mean


def _sigmoid(value: _Floats) -> _Floats:
    odds: _Floats = 1 / (1 + np.exp(-value))
    return odds
