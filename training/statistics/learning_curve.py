"""Extrapolates the held-out success of a run and its costs, with their uncertainty.

Log-odds of success change along a line over the planned iterations, which may be bent, below a ceiling: a policy
gradient moves log-odds. Draws from a prior are weighted by the likelihood of evaluations and training rollouts. Seeds
are fixed: equal figures give equal forecasts. `python -m benchmarks.learning.run_forecast` shows how right they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

Draws = npt.NDArray[np.float64]
_SAMPLE, _PRIOR_SAMPLE, _BINS = 2_000, 20_000, 60
"""Draws of a forecast and of the prior, and most points that a curve is fitted to; neighbours are averaged."""
_ALIKE, _BESIDE, _WARM = 0.3, 0.17, 1.0
"""Correlation of rollouts of one training scenario, log-odds by which policies are beside any curve, and iterations
that are lost to the warm-up."""
_PRIOR = np.array(((-1.0, 1.7), (2.2, 1.2), (3.0, 2.0), (0.0, 0.35), (0.0, 0.2))).T
"""Means and deviations: log-odds at first, their change until the planned end, those of the ceiling, the logarithm of
the bend, and how much easier training scenarios are."""
_TREND, _NOISE = 0.3, 0.03
"""Of the logarithm of a cost: its change while time grows e-fold, and its least noise."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One iteration: the weighted success of its training rollouts, how many have a reward, the success of each
    validation scenario, if it was evaluated, and what the iteration cost, once it is saved."""

    iteration: int
    success: float | None = None
    rollouts: int = 0
    held_out: Mapping[str, float] | None = None
    cost: Mapping[str, float | None] | None = None


def interval(draws: Draws) -> tuple[float, float, float]:
    """Return the median and the 90% interval."""
    low, middle, high = np.quantile(draws, (0.05, 0.5, 0.95))
    return float(middle), float(low), float(high)


class FittedCurve:
    """Draws from what the curve of a run can be. Its first point is where the iterations with rollouts begin."""

    def __init__(self, points: Sequence[CurvePoint], iterations: int, group: int, samples: int) -> None:
        """Training scenarios have `group` rollouts each, held-out ones `samples`."""
        self._first, self._now = points[0].iteration, points[-1].iteration
        self._planned = max(1.0, iterations - _WARM)
        normal = np.random.default_rng(0).standard_normal((_PRIOR_SAMPLE, _PRIOR.shape[1]))
        self._curves = _PRIOR[0] + normal * _PRIOR[1]
        evaluated = [(p.iteration, fmean(p.held_out.values()), samples * len(p.held_out)) for p in points if p.held_out]
        self._evaluated = evaluated[-1][2]
        independent = 1 / (1 + (group - 1) * _ALIKE)
        trained = [(p.iteration - 1, p.success, independent * p.rollouts) for p in points if p.success is not None]
        logs = self._likelihood(evaluated) + self._likelihood([of for of in trained if of[2]], self._curves[:, 4:])
        share = np.cumsum(np.exp(logs - logs.max()))
        self._curves = self._curves[np.searchsorted(share, share[-1] * (np.arange(_SAMPLE) + 0.5) / _SAMPLE)]

    def success(self, iteration: int) -> Draws:
        """Return what the policy's success can be after an iteration to come."""
        ahead = _BESIDE * np.sqrt(4 * (iteration - self._now) / self._planned)
        return _share(self._log_odds([iteration])[:, 0] + ahead * np.random.default_rng(1).standard_normal(_SAMPLE))

    def is_sure(self, iteration: int) -> bool:
        """Whether half of the policy's 90% interval is at most a fifth of its expected success."""
        middle, low, high = interval(self.success(iteration))
        return high - low <= 2 * 0.2 * middle

    def evaluation(self, iteration: int) -> Draws:
        """Return what a held-out evaluation can show then."""
        return np.random.default_rng(2).binomial(self._evaluated, self.success(iteration)) / self._evaluated

    def gain(self, iterations: int) -> float:
        """Return the expected gain of an iteration: the highest mean over the next ones, as a curve can rise late."""
        means = _share(self._log_odds(self._now + np.arange(iterations + 1))).mean(axis=0)
        return float(np.max((means[1:] - means[0]) / np.arange(1, iterations + 1)))

    def _log_odds(self, iterations: Any) -> Draws:
        first, change, top, bend, _ = np.moveaxis(self._curves[:, :, None], 1, 0)
        time = np.maximum(0.0, np.asarray(iterations) - self._first - _WARM) / self._planned
        success = np.clip(_share(top) * _share(first + change * time ** np.exp(bend)), 1e-4, 1 - 1e-4)
        return np.asarray(np.log(success / (1 - success)))

    def _likelihood(self, figures: Sequence[tuple[int, float, float]], easier: Any = 0.0) -> Draws:
        """Return the log-likelihood of each curve. A figure is an iteration, the share of its rollouts that succeeded,
        and how many independent rollouts that share is worth."""
        if not figures:
            return np.zeros(_PRIOR_SAMPLE)
        bins = np.array_split(np.array(figures), min(_BINS, len(figures)))
        times, shares, counts = np.array([(*part[:, :2].mean(axis=0), part[:, 2].sum()) for part in bins]).T
        success = np.clip(_share(self._log_odds(times) + easier), 1e-4, 1 - 1e-4)
        counts /= 1 + counts * shares * (1 - shares) * _BESIDE**2
        return np.asarray((counts * (shares * np.log(success) + (1 - shares) * np.log(1 - success))).sum(axis=1))


def extrapolated(earlier: Mapping[int, float], ahead: Sequence[tuple[int, float]]) -> Draws:
    """Return draws of the weighted sum of costs at later times, given positive costs by their times. Their logarithms
    follow a line over the logarithm of time; costs far from it count less."""
    times, costs = np.array(sorted(earlier.items())).T
    line, logs = np.column_stack((np.ones(len(times)), np.log(times / times[-1]))), np.log(costs)
    weights, spread = np.ones(len(times)), _NOISE
    for _ in range(4):
        inverse = np.linalg.inv((line.T * weights) @ line / spread**2 + np.diag((0.0, 1 / _TREND**2)))
        mean = inverse @ (line.T @ (weights * logs)) / spread**2
        residuals = np.abs(logs - line @ mean)
        spread = float(np.hypot(_NOISE, 1.48 * np.median(residuals)))
        weights = np.minimum(1.0, 1.5 * spread / np.maximum(residuals, 1e-9))
    draw, (later, amounts) = np.random.default_rng(3), np.array(ahead).T
    lines = draw.multivariate_normal(mean, inverse, _SAMPLE)
    noise = spread * (draw.standard_normal((_SAMPLE, len(later))) + draw.standard_normal((_SAMPLE, 1)))
    return np.asarray(np.exp(lines[:, :1] + lines[:, 1:] * np.log(later / times[-1]) + noise) @ amounts)


def _share(log_odds: Any) -> Draws:
    return np.asarray(1 / (1 + np.exp(-log_odds)))
