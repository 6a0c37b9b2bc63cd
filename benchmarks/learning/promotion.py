"""Measure how often a challenger's trial promotes a model that is no better, and one that is.

    python -m benchmarks.learning.promotion [--count 1000]

Scenarios are simulated: with probability `shared` both models meet the same difficulty, else independent ones. The
evidence is checked every 10 scenarios, up to 1,000. Exits with 1 unless at most 5% of equal challengers and at least
90% of those that are 10 points better are promoted.
"""

import argparse
import sys
from dataclasses import dataclass
from random import Random

from learnloop_service.training.statistics.sequential import Bets, Decision, Rule

SCENARIOS = 1_000
MOST_EQUAL, LEAST_BETTER = 0.05, 0.90


@dataclass(frozen=True, slots=True)
class Quality:
    """The champion's success rate, and how much better the challenger is."""

    champion: float
    better_by: float
    shared: float = 0.0

    def differences(self, chance: Random) -> list[float]:
        """Return the paired differences of one challenger."""
        differences = []
        for _ in range(SCENARIOS):
            for_champion = chance.random()
            for_challenger = for_champion if chance.random() < self.shared else chance.random()
            differences.append(
                float(for_challenger < self.champion + self.better_by) - float(for_champion < self.champion)
            )
        return differences


def trial(differences: list[float], rule: Rule) -> tuple[Decision, int]:
    """Return the decision and the number of pairs it took."""
    bets = Bets(rule)
    for count, difference in enumerate(differences, 1):
        bets.add(difference)
        if count % rule.look_every == 0 and (decision := bets.evidence().decision(rule)) is not Decision.CONTINUE:
            return decision, count
    return Decision.CONTINUE, len(differences)


def promoted(quality: Quality, rule: Rule, *, count: int) -> float:
    """Return the share of `count` challengers that is promoted."""
    return sum(decision is Decision.PROMOTE for decision, _ in _trials(quality, rule, count)) / count


def _trials(quality: Quality, rule: Rule, count: int) -> list[tuple[Decision, int]]:
    return [trial(quality.differences(Random(f"{quality} {number}")), rule) for number in range(count)]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000, help="challengers of each kind (default: 1000)")
    count = parser.parse_args().count
    broken = False
    print("champion  better by  shared  promoted  refused  undecided  scenarios")
    for champion in (0.3, 0.5, 0.8):
        for shared in (0.0, 0.5):
            for better_by in (0.0, 0.1):
                trials = _trials(Quality(champion, better_by, shared), Rule(), count)
                share = {kind: sum(decision is kind for decision, _ in trials) / count for kind in Decision}
                scenarios = sum(pairs for _, pairs in trials) / count
                won = share[Decision.PROMOTE]
                broken |= won > MOST_EQUAL if better_by == 0 else won < LEAST_BETTER
                print(
                    f"{champion:8.1f}  {better_by:9.1f}  {shared:6.1f}  {won:8.1%}  {share[Decision.REFUSE]:7.1%}  "
                    f"{share[Decision.CONTINUE]:9.1%}  {scenarios:9.0f}"
                )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
