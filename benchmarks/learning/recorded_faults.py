"""Count false alarms, and how fast planted faults are named, on the recorded facts of healthy runs.

    python -m benchmarks.learning.recorded_faults [--healthy 1000] [--runs 50] [--seed 0]

The facts are those of `benchmarks.learning.healthy_runs`. A run is resampled by drawing the groups of each iteration
from those that all runs of its kind had at that iteration. Faults are written into the facts from a random iteration
on. Prints the share of healthy runs with an alarm and with each note, and for each fault in how many runs it was the
first cause within three iterations of its onset (with groups of 4 x 4: six), within six, and before it.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.learning.examined_run import TINY
from benchmarks.learning.healthy_runs import Recorded, plan_of, read
from learnloop_service.training.diagnosis.diagnose import diagnose
from learnloop_service.training.diagnosis.diagnosis import Cause, Diagnosis, DiagnosisSettings, Severity
from learnloop_service.training.diagnosis.facts import Facts, GroupFacts, Probe, Readings, Replay, RewardFacts

RECORDED = Path(__file__).parents[2] / "tests" / "unit" / "training" / "diagnosis" / "healthy_runs.jsonl.gz"
LARGE = ("email", "sales", "stale", "lora")
"""Kinds of runs with groups of 8 x 8."""
_FIRST, _LAST = 4, 8
"""Iterations at which a fault can begin."""
Change = Callable[[random.Random, Facts], Facts]


def resampled(rng: random.Random, runs: Sequence[Recorded], kind: str) -> Recorded:
    """Return a run of that kind whose groups are drawn from all recorded ones."""
    of_kind = [run for run in runs if run.kind == kind]
    base = rng.choice(of_kind)
    pools = [[group for run in of_kind for group in run.facts[index].groups] for index in range(len(base.facts))]
    facts = [
        replace(iteration, groups=tuple(rng.choices(pool, k=len(iteration.groups)))) if pool else iteration
        for iteration, pool in zip(base.facts, pools, strict=True)
    ]
    return replace(base, facts=facts)


def diagnoses(run: Recorded) -> list[Diagnosis]:
    """Return what the run is diagnosed with."""
    return diagnose(run.facts, DiagnosisSettings(plan_of(run.kind, run.seed).config, TINY))


def _share(rng: random.Random, share: float, of: int) -> int:
    return sum(rng.random() < share for _ in range(of))


def _groups(change: Callable[[random.Random, GroupFacts], GroupFacts]) -> Change:
    return lambda rng, facts: replace(facts, groups=tuple(change(rng, group) for group in facts.groups))


def _in_rollouts(share: float, *names: str) -> Change:
    """Return a fault that shows in that share of the rollouts."""

    def change(rng: random.Random, group: GroupFacts) -> GroupFacts:
        counts: dict[str, Any] = dict.fromkeys(names, _share(rng, share, group.rollouts))
        return replace(group, **counts)

    return _groups(change)


def _tool_errors(rng: random.Random, group: GroupFacts) -> GroupFacts:
    calls = 3 * group.rollouts
    return replace(group, tool_calls=calls, tool_errors=_share(rng, 0.95, calls))


def _silent(rng: random.Random, group: GroupFacts) -> GroupFacts:
    silent = _share(rng, 0.5, group.scored)
    return replace(group, unscored=silent, scored=group.scored - silent)


def _misordered(rng: random.Random, group: GroupFacts) -> GroupFacts:
    return replace(group, misordered=float(_share(rng, 0.95, group.pairs)))


def _hacked(rng: random.Random, facts: Facts) -> Facts:
    groups = [replace(group, true_successes=0, pairs=0) for group in facts.groups]
    rewards = facts.rewards or RewardFacts(0.0, 1.0)
    return replace(facts, groups=tuple(groups), rewards=replace(rewards, mean=rewards.mean + 4 * rewards.deviation))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is written into facts, and the cause that it is to be named as."""

    cause: Cause
    change: Change
    fast: bool = True
    """Whether three iterations must be enough. A share that is close to its bound in healthy runs needs more."""


FAULTS: Mapping[str, Fault] = {
    "half of the rollouts lose a server": Fault(Cause.INFRASTRUCTURE_FAILURES, _in_rollouts(0.5, "infrastructure")),
    "half of the agents raise errors": Fault(Cause.AGENT_ERRORS, _in_rollouts(0.5, "agent_errors")),
    "half of the replies are cut off": Fault(Cause.TRUNCATED_REPLIES, _in_rollouts(0.5, "truncated")),
    "95% use up their turns": Fault(Cause.OUT_OF_TURNS, _in_rollouts(0.95, "out_of_turns")),
    "95% are malformed": Fault(Cause.MALFORMED_REPLIES, _in_rollouts(0.95, "malformed")),
    "95% of the tool calls fail": Fault(Cause.TOOL_ERRORS, _groups(_tool_errors)),
    "half of the verdicts are missing": Fault(Cause.JUDGE_SILENT, _groups(_silent)),
    "one score for every group": Fault(Cause.JUDGE_CONSTANT, _groups(lambda _, group: replace(group, scores=1))),
    "95% of the pairs are misordered": Fault(Cause.JUDGE_DISAGREES, _groups(_misordered)),
    "no success in any group": Fault(
        Cause.TOO_HARD, _groups(lambda _, group: replace(group, successes=0, true_successes=0, pairs=0)), fast=False
    ),
    "the reward rises without success": Fault(Cause.REWARD_HACKED, _hacked, fast=False),
    "the weights stay": Fault(Cause.WEIGHTS_UNCHANGED, lambda _, facts: replace(facts, weights_sha256="same")),
    "the sampler stays": Fault(
        Cause.SAMPLER_IS_NOT_TRAINER, lambda _, facts: replace(facts, probe=Probe(2, 0.2, 1e-6, 0.2, 0.0))
    ),
    "rollouts of older policies": Fault(Cause.STALE_POLICY, lambda _, facts: replace(facts, staleness=3)),
    "another parser": Fault(Cause.PARSER_DRIFT, lambda _, facts: replace(facts, readings={"train": Readings(16, 2)})),
    "tools that answer differently": Fault(
        Cause.ENVIRONMENT_FLAKY, lambda _, facts: replace(facts, replay=Replay("t", True, 1, "search", "a", "b"))
    ),
    "tasks that repeat": Fault(
        Cause.DUPLICATE_SCENARIOS,
        lambda _, facts: replace(facts, tasks={"train": {f"{facts.iteration}-{n}": "one" for n in range(64)}}),
    ),
}


def planted(rng: random.Random, runs: Sequence[Recorded], kind: str, fault: Fault) -> tuple[Recorded, int]:
    """Return a resampled run of that kind with the fault, and the iteration at which it begins."""
    run, onset = resampled(rng, runs, kind), rng.randint(_FIRST, _LAST)
    facts = [fault.change(rng, iteration) if iteration.iteration >= onset else iteration for iteration in run.facts]
    return replace(run, facts=facts), onset


def named_after(run: Recorded, onset: int, fault: Fault) -> int | None:
    """Return after how many iterations with the fault it was named, as the first cause of the whole run; 0 or less
    before its onset, None if it was not. A fault that begins suddenly can be named as a broken step as well."""
    others = (diagnosis for diagnosis in diagnoses(run) if diagnosis.cause is not Cause.POLICY_COLLAPSED)
    first = next((diagnosis for diagnosis in others if diagnosis.state == "active"), None)
    return first.named_at_iteration - onset + 1 if first is not None and first.cause == fault.cause else None


def false_alarms(rng: random.Random, runs: Sequence[Recorded], count: int) -> Counter[str]:
    """Return in how many of that many resampled healthy runs each cause was named, and `alarms` in total."""
    kinds = sorted({run.kind for run in runs})
    counts: Counter[str] = Counter()
    for number in range(count):
        named = diagnoses(resampled(rng, runs, kinds[number % len(kinds)]))
        counts.update(f"{diagnosis.cause} ({diagnosis.severity})" for diagnosis in named)
        counts["alarms"] += any(diagnosis.severity is not Severity.NOTE for diagnosis in named)
    return counts


def waits(
    rng: random.Random, runs: Sequence[Recorded], kinds: Sequence[str], fault: Fault, count: int
) -> list[int | None]:
    """Return after how many iterations the fault was named, in that many runs of these kinds."""
    return [named_after(*planted(rng, runs, kinds[number % len(kinds)], fault), fault) for number in range(count)]


def within(all_waits: Sequence[int | None], most: int) -> float:
    """Return the share of runs in which the fault was named within `most` iterations, and not before it began."""
    return sum(wait is not None and 0 < wait <= most for wait in all_waits) / len(all_waits)


def before(all_waits: Sequence[int | None]) -> float:
    """Return the share of runs in which the cause was named before the fault began."""
    return sum(wait is not None and wait <= 0 for wait in all_waits) / len(all_waits)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=1_000, help="resampled healthy runs")
    parser.add_argument("--runs", type=int, default=50, help="runs with each fault, of each size")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, runs = random.Random(options.seed), read(RECORDED)
    print(f"{len(runs)} recorded runs")
    for cause, count in sorted(false_alarms(rng, runs, options.healthy).items()):
        print(f"{cause:<40}{count / options.healthy:>8.1%} of {options.healthy} healthy runs")
    print(f"\n{'':<40}{'8 x 8: 3':>10}{'6':>6}{'before':>8}{'4 x 4: 6':>12}{'before':>8}")
    for name, fault in FAULTS.items():
        large = waits(rng, runs, LARGE, fault, options.runs)
        small = waits(rng, runs, ("small",), fault, options.runs)
        cells = [within(large, 3), within(large, 6), before(large), within(small, 6), before(small)]
        columns = [f"{cell:>{width}.0%}" for cell, width in zip(cells, (10, 6, 8, 12, 8), strict=True)]
        print(f"{name:<40}" + "".join(columns))


if __name__ == "__main__":
    main()
