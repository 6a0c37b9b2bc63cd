"""When a run ends before all its iterations, because its request says so (`stop_when`).

Each rule is decided after each evaluation by what is saved of the iterations, so a killed run ends where it would have
ended. The bets of `target` and `plateau` start anew along the run, with equal shares of one stake, and can be looked at
each time (training/statistics/betting.py): the probability that they ever show what does not hold is at most 5%, if
rollouts of a policy on the validation scenarios are independent.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import log, log1p
from statistics import fmean

from learnloop_service.training.statistics.betting import BETS, log_mean
from learnloop_service.training.statistics.learning_curve import CurvePoint, FittedCurve
from learnloop_service.training.types import RunConfig

RISE = 0.3
"""A run that at its pace would gain less than this in as many iterations as it was asked for is on a plateau."""
_NEWEST = 8
"""Iterations whose mean cost is that of the next one."""
_Evaluated = tuple[int, Mapping[str, float]]


class Stopping:
    """The rules of a run, with the iterations so far."""

    def __init__(self, config: RunConfig, points: Iterable[CurvePoint] = ()) -> None:
        self.config, self._points = config, {point.iteration: point for point in points}

    def add(self, *points: CurvePoint) -> None:
        """Add iterations, or what has become known of them."""
        self._points |= {point.iteration: point for point in points}

    @property
    def points(self) -> list[CurvePoint]:
        """The iterations from the last one without rollouts on, or from the baseline."""
        return [self._points[i] for i in sorted(self._points) if i >= self.config.supervised_iterations]

    def fitted(self) -> FittedCurve | None:
        """Return the curve of the run; None before its second evaluation after the baseline."""
        points, config = self.points, self.config
        is_early = sum(point.held_out is not None for point in points[1:]) < 2
        sizes = config.iterations, config.rollouts_per_group, config.evaluation.samples
        return None if is_early else FittedCurve(points, *sizes)

    @property
    def reason(self) -> str | None:
        """The rule that ends the run after the newest iteration: target, plateau or no_gain."""
        rules, points = self.config.stop_when, self.points
        if (
            rules is None
            or len(points) < 2
            or not points[-1].held_out
            or points[-1].iteration >= self.config.all_iterations
        ):
            return None
        evaluated = [(point.iteration, point.held_out) for point in points if point.held_out]
        if (target := rules.target) is not None:  # against "no policy that was evaluated has that success"
            above = [[success - target for success in rates.values()] for _, rates in evaluated]
            if self._is_shown([above], [1]):
                return "target"
        if rules.plateau and self._is_level(evaluated):
            return "plateau"
        return "no_gain" if rules.no_gain and self._is_too_dear(rules.no_gain) else None

    def _is_level(self, evaluated: Sequence[_Evaluated]) -> bool:
        """Bet against "success rises at that pace", on pairs of evaluations at several distances: far pairs show a
        small rise, near ones a plateau that has just begun. No evaluation is in two pairs of the same distance."""
        distances = [1 << power for power in range(self._evaluations.bit_length() - 1)]
        starts = [range(0, len(evaluated) - far, 2 * far) for far in distances]
        processes = [
            [self._shortfalls(evaluated[at : at + 2 * far], far) for at in of]
            for far, of in zip(distances, starts, strict=True)
        ]
        return self._is_shown(processes, [2 * far for far in distances])

    def _shortfalls(self, evaluated: Sequence[_Evaluated], far: int) -> list[float]:
        """Return by how much less than at the pace each scenario rose between the pairs, from -1 to 1."""
        shortfalls = []
        for (before, earlier), (after, later) in zip(evaluated, evaluated[far:], strict=False):
            rise = RISE * (after - before) / self.config.iterations
            shortfalls += [(rise - later[id] + earlier[id]) / (1 + rise) for id in earlier if id in later]
        return shortfalls

    @property
    def _evaluations(self) -> int:
        return 1 + -(-self.config.iterations // self.config.evaluation.every)

    def _is_shown(self, processes: Sequence[Sequence[Sequence[float]]], every: Sequence[int]) -> bool:
        """Return whether the bets have gained enough, of which one starts at each part of each process.

        Process number i has a part for every[i] evaluations of the run, which sets the shares of the stake. Unless
        there is something to show, the observations of each part have a mean of at most 0.
        """
        logs = list[float]()
        for parts in processes:
            stakes = [0.0] * len(BETS)
            for part in reversed(parts):
                stakes = [stake + sum(log1p(bet * x) for x in part) for bet, stake in zip(BETS, stakes, strict=True)]
                logs.append(log_mean(stakes))
        later = sum(-(-self._evaluations // number) for number in every) - len(logs)
        return bool(logs) and log_mean([*logs, *[0.0] * later]) >= -log(0.05)

    def _is_too_dear(self, worths: Mapping[str, float | None]) -> bool:
        """Return whether a point of success is expected to cost more than it is worth."""
        costs, curve = [point.cost for point in self.points[1:-1] if point.cost][-_NEWEST:], self.fitted()
        if curve is None or not costs:
            return False
        spent = {f"{unit}_per_point": fmean(cost[unit] or 0.0 for cost in costs) for unit in costs[0]}
        points = max(0.0, 100 * curve.gain(self.config.all_iterations - self.points[-1].iteration))
        return any(worth is not None and spent[name] > worth * points for name, worth in worths.items())
