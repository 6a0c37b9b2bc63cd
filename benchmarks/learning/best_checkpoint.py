"""Simulate which rule for the best checkpoint picks the one with the better success on the test split.

    python -m benchmarks.learning.best_checkpoint [--count 100]

Success on all possible scenarios follows a curve over the run's evaluations. Scenarios differ in difficulty, and each
checkpoint is luckier with some of them. Printed is how many points the picked checkpoint is worse than the best one of
its curve, on average over `count` runs: with the rules `newest` (the newest that cannot be told apart from the
highest), `highest`, and with the last checkpoint. Exits with 1 if `highest` is not the better rule.
"""

import argparse
import sys
from collections.abc import Sequence
from math import exp
from random import Random
from statistics import fmean

from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from learnloop_service.training.statistics.difference import MIN_CHANGED

CURVES = {
    "rises": (0.83, 0.88, 0.91, 0.93, 0.935),
    "rises slowly": (0.60, 0.64, 0.68, 0.72, 0.73),
    "plateau": (0.83, 0.93, 0.93, 0.93, 0.93),
    "falls by 2 at the end": (0.83, 0.90, 0.95, 0.93, 0.93),
    "falls by 4": (0.83, 0.90, 0.95, 0.92, 0.91),
    "falls by 8": (0.83, 0.90, 0.95, 0.89, 0.87),
    "falls by 5, weaker base": (0.40, 0.50, 0.58, 0.55, 0.53),
    "falls by 15, weaker base": (0.40, 0.50, 0.58, 0.48, 0.43),
    "long rise": (0.30, 0.45, 0.55, 0.63, 0.69, 0.74, 0.78, 0.81, 0.83, 0.85),
    "long, slow fall": (0.50, 0.70, 0.85, 0.84, 0.83, 0.82, 0.81, 0.80, 0.79, 0.78),
}
SIZES = ((141, 2), (128, 1), (64, 1), (24, 2))
"""Validation scenarios, and sampled rollouts of each."""
_SCENARIO, _CHECKPOINT = 2.5, 1.0
"""Standard deviations of a scenario's log-odds, and of a checkpoint's luck with it."""


class _Fast(Validation):
    """Tells checkpoints apart by the interval of a normal distribution instead of 2,000 draws of the bootstrap."""

    def may_equal(self, other: Validation) -> bool:
        changes = [self.successes[id] - other.successes[id] for id in self.successes]
        if sum(change != 0 for change in changes) < MIN_CHANGED:
            return True
        mean = fmean(changes)
        deviation = (fmean(change * change for change in changes) - mean * mean) ** 0.5
        return bool(abs(mean) <= 1.96 * deviation / len(changes) ** 0.5)


def _center(success: float) -> float:
    """Return the mean log-odds with which success is this, over scenarios and checkpoints' luck."""
    spread = (_SCENARIO**2 + _CHECKPOINT**2) ** 0.5
    steps = [number / 20 for number in range(-80, 81)]
    weights = [exp(-step * step / 2) for step in steps]
    low, high = -15.0, 15.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        expected = sum(w / (1 + exp(-middle - spread * step)) for w, step in zip(weights, steps, strict=True))
        low, high = (middle, high) if expected < success * sum(weights) else (low, middle)
    return low


def regrets(curve: Sequence[float], scenarios: int, samples: int, count: int) -> dict[str, float]:
    """Return how much worse the picked checkpoint is than the best one, by rule."""
    chance, totals = Random(f"{curve} {scenarios} {samples}"), {"newest": 0.0, "highest": 0.0, "last": 0.0}
    centers = [_center(success) for success in curve]
    for _ in range(count):
        hard = [chance.gauss(0, _SCENARIO) for _ in range(scenarios)]
        newest, highest = BestCheckpoint(), BestCheckpoint()
        for step, center in enumerate(centers):
            chances = [1 / (1 + exp(-center - difficulty - chance.gauss(0, _CHECKPOINT))) for difficulty in hard]
            rates = [sum(chance.random() < probability for _ in range(samples)) / samples for probability in chances]
            evaluation = _Fast(fmean(rates), 0.0, {str(number): rate for number, rate in enumerate(rates)})
            newest, highest = newest.after(step, evaluation, "newest"), highest.after(step, evaluation, "highest")
        for rule, step in {"newest": newest.step, "highest": highest.step, "last": len(curve) - 1}.items():
            totals[rule] += max(curve) - curve[step]
    return {rule: total / count for rule, total in totals.items()}


def main() -> None:
    """Print a table for each number of scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="simulated runs of each curve")
    count, is_better = parser.parse_args().count, True
    for scenarios, samples in SIZES:
        print(f"\n{scenarios} scenarios, {samples} rollouts of each: points lost")
        print(f"{'':26}{'newest':>9}{'highest':>9}{'last':>9}")
        table = {name: regrets(curve, scenarios, samples, count) for name, curve in CURVES.items()}
        mean = {rule: fmean(row[rule] for row in table.values()) for rule in ("newest", "highest", "last")}
        worst = {rule: max(row[rule] for row in table.values()) for rule in ("newest", "highest", "last")}
        for name, row in {**table, "mean": mean, "worst": worst}.items():
            print(f"{name:26}" + "".join(f"{100 * value:9.2f}" for value in row.values()))
        is_better = is_better and mean["highest"] < mean["newest"] and worst["highest"] < worst["newest"]
    sys.exit(0 if is_better else 1)


if __name__ == "__main__":
    main()
