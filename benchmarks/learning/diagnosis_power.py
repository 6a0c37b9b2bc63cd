"""Simulate how fast a symptom that begins during a run is named, and how often one that stays at the bound is.

    python -m benchmarks.learning.diagnosis_power [--runs 2000] [--seed 0]

Uses the detector of the diagnoses (`learnloop_service.training.diagnosis.shares`). Whether a rollout shows the symptom
is drawn from a beta-binomial distribution, so that rollouts of a group are correlated by 0.3. The symptom begins at
iteration 4. Prints the share of runs in which it is named within three and within five iterations, and the share of
runs with a false alarm if the symptom stays exactly at the bound.
"""

import argparse
import random
from collections.abc import Sequence

from learnloop_service.training.diagnosis.shares import SymptomShares, share_spans

_CORRELATION = 0.3
_ONSET = 4
_SHAPES = ((14, 8, 8), (60, 8, 8), (14, 4, 4))
"""Iterations, groups of an iteration, rollouts of a group."""
_FAULTS = ((0.2, 0.95, 0.4), (0.2, 0.8, 0.4), (0.2, 0.6, 0.4), (0.02, 0.5, 0.1), (0.02, 0.3, 0.1))
"""Share before and after the onset, and the bound."""


def _group(rng: random.Random, mean: float, rollouts: int) -> float:
    """Draw the share of a group's rollouts that show the symptom."""
    total = 1 / _CORRELATION - 1
    share = rng.betavariate(mean * total, (1 - mean) * total)
    return sum(rng.random() < share for _ in range(rollouts)) / rollouts


def _run(rng: random.Random, means: Sequence[float], groups: int, rollouts: int) -> list[SymptomShares]:
    return [
        SymptomShares(iteration, tuple(_group(rng, mean, rollouts) for _ in range(groups)))
        for iteration, mean in enumerate(means, 1)
    ]


def _named_within(rng: random.Random, shape: tuple[int, int, int], fault: tuple[float, float, float]) -> int | None:
    """Return after how many iterations with the symptom it was named, or None if it was not."""
    (iterations, groups, rollouts), (before, after, bound) = shape, fault
    means = [before] * (_ONSET - 1) + [after] * (iterations - _ONSET + 1)
    spans = share_spans(_run(rng, means, groups, rollouts), bound, iterations)
    return spans[0].named - _ONSET + 1 if spans else None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs for each cell")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"{'share, bound':<28}" + "".join(f"{f'{n} of {g} x {r}':>20}" for n, g, r in _SHAPES))
    for fault in _FAULTS:
        cells = []
        for shape in _SHAPES:
            waits = [_named_within(rng, shape, fault) for _ in range(options.runs)]
            three, five = (sum(wait is not None and wait <= most for wait in waits) for most in (3, 5))
            cells.append(f"{three / options.runs:>13.0%}, {five / options.runs:.0%}".rjust(20))
        print(f"{fault[0]} to {fault[1]}, bound {fault[2]}".ljust(28) + "".join(cells))
    for bound in (0.4, 0.1):
        alarms = [
            sum(
                bool(share_spans(_run(rng, [bound] * iterations, groups, rollouts), bound, iterations))
                for _ in range(options.runs)
            )
            for iterations, groups, rollouts in _SHAPES
        ]
        print(
            f"false alarms at bound {bound}".ljust(28)
            + "".join(f"{alarm_count / options.runs:>20.2%}" for alarm_count in alarms)
        )


if __name__ == "__main__":
    main()
