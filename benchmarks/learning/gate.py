"""How often the gate of an evaluation accepts a model that is not better, and one that is.

    python -m benchmarks.learning.gate [--comparisons 2000]

Both models attempt the same tasks once each. The first one succeeds at 35% of them. Of an equal one, 12% of the tasks
are won and 12% lost by chance; a better one loses 6%. These shares are assumptions. "Strictly higher" accepts whoever
has more successes after the last task, as published prompt optimisers do.
"""

import argparse
from random import Random

from learnloop_service.training.statistics.gate import GateDecision, GateRule, verdict

_TASKS = (24, 64, 200)
_GAINS = (0.0, 0.1, 0.2, 0.3, 0.5)
_LOST, _CHANCE = 0.06, 0.12


def decided(differences: list[float], rule: GateRule) -> tuple[bool, int]:
    """Return whether the second model is accepted, and after how many tasks that is decided."""
    most = len(differences)
    for start in range(0, most, rule.look_every):
        done = min(start + rule.look_every, most)
        decision = verdict(differences[:done], rule, done, most).decision
        if decision is not GateDecision.CONTINUE:
            return decision is GateDecision.BETTER, done
    raise AssertionError("every comparison is decided")


def shares(tasks: int, gain: float, comparisons: int, drawn: Random) -> tuple[float, float, float]:
    """Return the shares of comparisons accepted by the gate and by "strictly higher", and the gate's mean tasks."""
    lost = _LOST if gain else _CHANCE
    weights = (lost, 1 - gain - 2 * lost, gain + lost)
    accepted = higher = used = 0
    for _ in range(comparisons):
        differences = drawn.choices((-1.0, 0.0, 1.0), weights, k=tasks)
        is_better, done = decided(differences, GateRule())
        accepted, higher, used = accepted + is_better, higher + (sum(differences) > 0), used + done
    return accepted / comparisons, higher / comparisons, used / comparisons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=2_000)
    comparisons = parser.parse_args().comparisons
    print("gain      tasks   accepted by the gate   its mean tasks   by strictly higher")
    for gain in _GAINS:
        for tasks in _TASKS:
            accepted, higher, used = shares(tasks, gain, comparisons, Random(f"{gain} {tasks}"))
            print(f"{100 * gain:+4.0f} points {tasks:4} {accepted:20.1%} {used:18.0f} {higher:18.1%}")


if __name__ == "__main__":
    main()
