"""Draw tasks of which half are unsolvable by difficulty, or in passes: `python -m benchmarks.learning.difficulty`.

The tiny email agent learns from a pool of 48 questions. In the half world, every second question is about a project of
another mailbox, so that nobody can answer it; in the clean world all can be answered. Counted are the sampled tokens
until the agent answers 70% of held-out questions, all of which can be answered, over the last three iterations' 192.

    python -m benchmarks.learning.difficulty --seeds 0 1 2 3 4
    python -m benchmarks.learning.difficulty --arms half-difficulty --seeds 3 > one.json
    python -m benchmarks.learning.difficulty --collect *.json

Engine, environment, judge and the draw are real, without a service between them. An arm prints one line of JSON and
takes three to nine minutes of one core a seed. Fails unless drawing by difficulty, on the mean over the seeds, needs at
most 70% of the tokens of passes in the half world if groups that teach nothing are replaced, and at most 5% more in the
clean one. Alone it has no goal in the half world. Arms with a spread only show whether scaling down small differences
helps. An arm that did not reach the target counts with all of its tokens.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from benchmarks.learning.engine_learning import CONFIG, ENVIRONMENT, Agent, Try, scored
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.scenario_order import draw as draw_in_passes
from learnloop_service.training.advantages import differ
from learnloop_service.training.difficulty import draw_by_difficulty, reward_range
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.group_facts import GroupFacts

TARGET = 0.7
"""Sampled success at held-out questions."""
_POOL = 48
_HELD_OUT, _AVERAGED = 64, 3
_MOST_ITERATIONS = 40


@dataclass(frozen=True, slots=True)
class DifficultyArm:
    """A way to draw the questions and to train on them."""

    is_half: bool = True
    """Whether half of the questions cannot be answered."""
    by_difficulty: bool = False
    replaces: bool = False
    least_spread: float = 0.0
    """Share of the rewards' range."""


ARMS: Mapping[str, DifficultyArm] = {
    f"{world}-{draw}{replacing}": DifficultyArm(world == "half", draw == "difficulty", bool(replacing))
    for world in ("half", "clean")
    for replacing in ("", "-replacing")
    for draw in ("passes", "difficulty")
} | {
    f"{world}-passes-spread-{share:g}": DifficultyArm(world == "half", least_spread=share)
    for world in ("half", "clean")
    for share in (0.02, 0.1)
}
GOALS = {"half": 0.7, "clean": 1.05}
"""Most tokens by difficulty, as a share of those in passes."""


def pool_of(arm: DifficultyArm, seed: int) -> list[Scenario]:
    """Return the questions of an arm's world."""
    questions = ENVIRONMENT.scenarios("train", _POOL, seed)
    others = ENVIRONMENT.scenarios("train", _POOL, seed, _POOL)
    return [
        replace(one, task={**one.task, "question": other.task["question"]}, reference=other.reference)
        if arm.is_half and number % 2
        else one
        for number, (one, other) in enumerate(zip(questions, others, strict=True))
    ]


class Learner(Agent):
    """The agent, and what it has tried so far."""

    def __init__(self, directory: Path, arm: DifficultyArm, seed: int) -> None:
        super().__init__(directory, "cpu")
        self._arm, self._seed, self._pool = arm, seed, pool_of(arm, seed)
        self._history: dict[int, list[GroupFacts]] = {}
        self._idle = 0
        self.tokens = 0

    def iterate(self, iteration: int) -> int:
        """Roll out and train. Return how many of the groups had rewards that differ."""
        scheduled, further = self._draw(iteration)
        groups = self._rewarded([*scheduled, *further], f"{self._seed}/{iteration}")
        self._history[iteration] = [facts for _, facts in groups]
        taught = [differ([reward for _, reward in group]) for group, _ in groups]
        self._idle = len(scheduled) - sum(taught[: len(scheduled)]) if self._arm.replaces else 0
        low, high = reward_range(self._history)
        rate = CONFIG.learning_rate * min(1.0, iteration / CONFIG.warmup_iterations)
        if any(taught):
            self.train([group for group, _ in groups], rate, least_spread=self._arm.least_spread * (high - low))
        return sum(taught)

    def held_out(self, iteration: int) -> float:
        """Return the success at held-out questions, other ones in each iteration."""
        scenarios = ENVIRONMENT.scenarios("test", _HELD_OUT, 0, iteration % _AVERAGED * _HELD_OUT)
        verdicts = scored(self.play(scenarios, 1.0, f"{self._seed}/test/{iteration}"))
        return fmean(ENVIRONMENT.success(*verdict) for verdict in verdicts)

    def _draw(self, iteration: int) -> tuple[list[Scenario], list[Scenario]]:
        count = CONFIG.groups_per_iteration
        if self._arm.by_difficulty:
            drawn = draw_by_difficulty(
                self._pool, self._history, count=count, extra=self._idle, seed=self._seed, iteration=iteration
            )
            scheduled, further = ([scenario for scenario, _ in part] for part in drawn)
            return scheduled, further
        numbers = list(draw_in_passes(self._pool, count, self._seed, (iteration - 1) * count))
        taken = {scenario.id for scenario in numbers}
        reserve = draw_in_passes(self._pool, 2 * count, self._seed, (iteration - 1 + _MOST_ITERATIONS) * count)
        return numbers, [scenario for scenario in reserve if scenario.id not in taken][: self._idle]

    def _rewarded(self, scenarios: Sequence[Scenario], seed: str) -> list[tuple[list[tuple[Try, float]], GroupFacts]]:
        count = CONFIG.rollouts_per_group
        tries = self.play([scenario for scenario in scenarios for _ in range(count)], 1.0, seed)
        self.tokens += sum(len(ids) for one_try in tries for ids in one_try.exact.values())
        verdicts = scored(tries)
        rewards = [sum(ENVIRONMENT.reward(*verdict).values()) for verdict in verdicts]
        successes = [ENVIRONMENT.success(*verdict) for verdict in verdicts]
        groups = []
        for number, scenario in enumerate(scenarios):
            part = slice(number * count, (number + 1) * count)
            of_group = rewards[part]
            facts = GroupFacts(
                rollouts=count,
                scored=count,
                successes=sum(successes[part]),
                scenario=scenario.id,
                lowest=min(of_group),
                highest=max(of_group),
                spread=pstdev(of_group),
            )
            groups.append((list(zip(tries[part], of_group, strict=True)), facts))
        return groups


def learn(name: str, seed: int, minutes: float) -> dict[str, Any]:
    """Return the tokens that an arm needs, and its curve."""
    began, curve = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as directory:
        learner = Learner(Path(directory), ARMS[name], seed)
        recent: list[float] = []
        for iteration in range(1, _MOST_ITERATIONS + 1):
            taught = learner.iterate(iteration)
            recent = [*recent, learner.held_out(iteration)][-_AVERAGED:]
            success = round(fmean(recent), 4)
            print(f"iteration {iteration}: {success:.3f} after {learner.tokens:,} tokens", file=sys.stderr, flush=True)
            curve.append({"tokens": learner.tokens, "success": success, "taught": taught})
            is_over = time.perf_counter() - began > 60 * minutes
            if is_over or (len(recent) == _AVERAGED and success >= TARGET):
                break
    seconds = round(time.perf_counter() - began, 1)
    return {"arm": name, "seed": seed, "tokens": tokens_until(curve), "seconds": seconds, "curve": curve}


def tokens_until(curve: Sequence[Mapping[str, float]]) -> float | None:
    """Return the tokens until the target, between two iterations in proportion; None if it was not reached."""
    if curve[-1]["success"] < TARGET:
        return None
    before = curve[-2]
    share = (TARGET - before["success"]) / (curve[-1]["success"] - before["success"])
    return round(before["tokens"] + max(0.0, share) * (curve[-1]["tokens"] - before["tokens"]), 1)


def report(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Print the table and the goals, and return whether they are reached. An arm that does not reach the target counts
    with all of its tokens."""
    tokens: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        tokens[row["arm"]][row["seed"]] = row["tokens"] or row["curve"][-1]["tokens"]
    is_reached = True
    for name in (name for name in ARMS if name in tokens):
        missed = sum(row["arm"] == name and row["tokens"] is None for row in rows)
        values = " ".join(f"{value:7.0f}" for _, value in sorted(tokens[name].items()))
        print(
            f"{name:28} {fmean(tokens[name].values()):8.0f} tokens  {values}{f'  {missed} not reached' * bool(missed)}"
        )
    for name, of_arm in tokens.items():
        arm = ARMS[name]
        world = "half" if arm.is_half else "clean"
        rival = tokens[f"{world}-passes{'-replacing' if arm.replaces else ''}"]
        if not (seeds := of_arm.keys() & rival.keys()) or not (arm.by_difficulty or arm.least_spread):
            continue
        share = fmean(of_arm[seed] for seed in seeds) / fmean(rival[seed] for seed in seeds)
        goal = GOALS[world] if arm.by_difficulty and (arm.replaces or not arm.is_half) else None
        is_reached &= goal is None or share <= goal
        print(f"{name:28} {share:8.2f} of passes, {f'goal at most {goal}' if goal else 'no goal'}, {len(seeds)} seeds")
    return is_reached


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.difficulty", description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="after which an arm ends without the target")
    parser.add_argument("--collect", type=Path, nargs="+", metavar="FILE", help="report what was printed before")
    options = parser.parse_args()
    if options.collect:
        lines = [line for file in options.collect for line in file.read_text().splitlines()]
        return 0 if report([json.loads(line) for line in lines if line.startswith('{"arm"')]) else 1
    set_cpu_mode()
    torch.set_num_threads(1)  # arms and seeds run at the same time, each on its core
    rows = []
    for name in options.arms:
        for seed in options.seeds:
            rows.append(learn(name, seed, options.minutes))
            print(json.dumps(rows[-1]), flush=True)
    return 0 if report(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
