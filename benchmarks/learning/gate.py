"""How often candidates are accepted that are not better, and those that are: by the gate, and by trials of promotions.

    python -m benchmarks.learning.gate [--ladders 1000] [--comparisons 2000] [--count 1000]

1. Ladders: 50 prompts that are equal to the champion are compared with it, one after the other, on the same tasks, and
   share the error of an improvement. Printed is the share of ladders that ever accept one.
2. Comparisons: 35% of the tasks succeed before. A better candidate loses 6% of the tasks; an equal one wins and loses
   12% by chance. Printed is the share that is accepted at an error of 5%, and as prompt 1, 5 and 20 of an improvement.
3. Trials: with probability `shared` challenger and champion meet the same difficulty, else independent ones. The
   evidence is looked at after every 10 scenarios, up to 1,000.

"Strictly higher" accepts whoever has more successes after the last task, as published prompt optimisers do. The shares
of tasks are assumptions. Exits with 1 if a figure misses its limit.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from learnloop_service.training.statistics.error_shares import ERROR, error_shares
from learnloop_service.training.statistics.gate import GateDecision, GateRule, verdict
from learnloop_service.training.statistics.sequential import Bets, Decision, Rule

_TASKS = (24, 64, 200)
_PROMPTS = 50
_GAINS = (0.0, 0.1, 0.2, 0.3, 0.5)
_LOST, _CHANCE = 0.06, 0.12
_SUCCESS = 0.4
_SHARES = error_shares([False] * _PROMPTS, planned=0)
_LEAST_POWER = {(64, 0.3): 0.88, (200, 0.2): 0.97}
"""Shares of better candidates that must be accepted as prompt 1, by tasks and gain."""
_SCENARIOS = 1_000
_MOST_EQUAL, _LEAST_BETTER = 0.05, 0.90


def decided(differences: Sequence[float], rule: GateRule) -> tuple[bool, int]:
    """Return whether the gate accepts the candidate, and after how many tasks that is decided."""
    most = len(differences)
    for start in range(0, most, rule.look_every):
        done = min(start + rule.look_every, most)
        decision = verdict(differences[:done], rule, done, most).decision
        if decision is not GateDecision.CONTINUE:
            return decision is GateDecision.BETTER, done
    raise AssertionError("every comparison is decided")


def by_gate(differences: Sequence[float], number: int) -> bool:
    """Return whether the gate accepts prompt number `number` of an improvement, from 1."""
    return decided(differences, GateRule(error=_SHARES[number - 1]))[0]


def strictly_higher(differences: Sequence[float], number: int) -> bool:
    """Return whether the candidate has more successes than the champion."""
    return sum(differences) > 0


def wrong_ladders(
    tasks: int, ladders: int, accepts: Callable[[Sequence[float], int], bool], prompts: int = _PROMPTS
) -> float:
    """Return the share of ladders that accept a prompt that is equal to the champion."""
    return sum(_is_wrong(tasks, prompts, accepts, Random(f"{tasks} {number}")) for number in range(ladders)) / ladders


def _is_wrong(tasks: int, prompts: int, accepts: Callable[[Sequence[float], int], bool], drawn: Random) -> bool:
    """Return whether one ladder ever accepts a prompt. All are compared with the same rollouts of the champion."""
    wins, losses = _CHANCE / (1 - _SUCCESS), _CHANCE / _SUCCESS
    champion = [drawn.random() < _SUCCESS for _ in range(tasks)]
    for number in range(1, prompts + 1):
        differences = [
            (-1.0 if drawn.random() < losses else 0.0) if success else (1.0 if drawn.random() < wins else 0.0)
            for success in champion
        ]
        if accepts(differences, number):
            return True
    return False


def accepted(tasks: int, gain: float, comparisons: int, rule: GateRule) -> tuple[float, float, float]:
    """Return the shares of comparisons accepted by the gate and by "strictly higher", and the gate's mean tasks."""
    drawn, lost = Random(f"{gain} {tasks}"), _LOST if gain else _CHANCE
    weights = (lost, 1 - gain - 2 * lost, gain + lost)
    by_rule = higher = used = 0
    for _ in range(comparisons):
        differences = drawn.choices((-1.0, 0.0, 1.0), weights, k=tasks)
        is_better, done = decided(differences, rule)
        by_rule, higher, used = by_rule + is_better, higher + (sum(differences) > 0), used + done
    return by_rule / comparisons, higher / comparisons, used / comparisons


@dataclass(frozen=True, slots=True)
class Quality:
    """The champion's success rate, and how much better the challenger of a trial is."""

    champion: float
    better_by: float
    shared: float = 0.0

    def differences(self, chance: Random) -> list[float]:
        """Return the paired differences of one challenger."""
        differences = []
        for _ in range(_SCENARIOS):
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


def _print_ladders(ladders: int) -> Iterator[bool]:
    """Print the table of ladders, and yield whether a figure misses its limit."""
    print(f"ladders of {_PROMPTS} equal prompts that ever accept one\ntasks  the gate  strictly higher")
    for tasks in _TASKS:
        wrong, higher = (wrong_ladders(tasks, ladders, rule) for rule in (by_gate, strictly_higher))
        print(f"{tasks:5}  {wrong:8.1%}  {higher:15.1%}")
        yield wrong > ERROR


def _print_comparisons(comparisons: int) -> Iterator[bool]:
    """Print the table of comparisons, and yield whether a figure misses its limit."""
    print("\naccepted (mean tasks)")
    print("gain       tasks         alone     as prompt 1      prompt 5     prompt 20  strictly higher")
    for gain in _GAINS:
        for tasks in _TASKS:
            errors = (ERROR, *(_SHARES[number - 1] for number in (1, 5, 20)))
            cells = [accepted(tasks, gain, comparisons, GateRule(error=error)) for error in errors]
            figures = "".join(f"{share:7.1%} ({used:3.0f}) " for share, _, used in cells)
            print(f"{100 * gain:+4.0f} points {tasks:4}  {figures}  {cells[0][1]:14.1%}")
            yield cells[0][0] > ERROR if gain == 0 else cells[1][0] < _LEAST_POWER.get((tasks, gain), 0.0)


def _print_trials(count: int) -> Iterator[bool]:
    """Print the table of trials, and yield whether a figure misses its limit."""
    print("\ntrials\nchampion  better by  shared  promoted  refused  undecided  scenarios")
    for champion in (0.3, 0.5, 0.8):
        for shared in (0.0, 0.5):
            for better_by in (0.0, 0.1):
                trials = _trials(Quality(champion, better_by, shared), Rule(), count)
                share = {kind: sum(decision is kind for decision, _ in trials) / count for kind in Decision}
                scenarios = sum(pairs for _, pairs in trials) / count
                won = share[Decision.PROMOTE]
                print(
                    f"{champion:8.1f}  {better_by:9.1f}  {shared:6.1f}  {won:8.1%}  {share[Decision.REFUSE]:7.1%}  "
                    f"{share[Decision.CONTINUE]:9.1%}  {scenarios:9.0f}"
                )
                yield won > _MOST_EQUAL if better_by == 0 else won < _LEAST_BETTER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladders", type=int, default=1_000, help="ladders of each number of tasks (default: 1000)")
    parser.add_argument("--comparisons", type=int, default=2_000, help="comparisons of each kind (default: 2000)")
    parser.add_argument("--count", type=int, default=1_000, help="challengers of each kind in trials (default: 1000)")
    options = parser.parse_args()
    tables = (
        _print_ladders(options.ladders),
        _print_comparisons(options.comparisons),
        _print_trials(options.count),
    )
    missed = [is_missed for table in tables for is_missed in table]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
