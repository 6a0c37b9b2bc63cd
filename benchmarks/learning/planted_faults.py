"""Plant faults in real runs of the tiny base, and see which cause is named, and after how many iterations.

    python -m benchmarks.learning.planted_faults [--seeds 2] [--iterations 14] [--processes 1] [--only NAME]

The faults are planted in code, in the environment, the judge or the settings, from the first iteration on; only a part
of the reward that pays for length begins later. Faults of the engine itself (a step that is skipped, a sampler that
stays behind) are planted in
tests/integration/training/test_diagnosis.py. Prints a line for each run, and fails if an expected cause was not named.
"""

import argparse
import dataclasses
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks import processes
from benchmarks.learning.examined_run import TINY, Plan, facts_of_run
from environment.base import Environment, EpisodeFailed, Json, Outcome, Scenario, Split, ToolResult
from judges.base import Candidate, Judge, Judgement, Score
from training.diagnosis.diagnose import diagnose
from training.diagnosis.diagnosis import Cause, DiagnosisSettings
from training.types import EvaluationConfig, RunConfig


class _Delegating:
    """Has everything that another object has, but for what a subclass changes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Scores(_Delegating):
    """A judge whose scores are changed."""

    def __init__(self, inner: Judge, change: Callable[[float], float | None]) -> None:
        super().__init__(inner)
        self.change = change

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        judgement = await self.inner.judge(scenario, candidates)
        return Judgement([self._changed(score) for score in judgement.scores])

    def _changed(self, score: Score) -> Score:
        return score if score.value is None else Score(self.change(score.value), "changed")


class _Episodes(_Delegating):
    """An environment whose episodes are of a given class."""

    def __init__(self, inner: Environment, episode: Callable[[Any], Any]) -> None:
        super().__init__(inner)
        self.make = episode

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        return self.make(self.inner.episode(scenario, max_turns))


class _BrokenTools(_Delegating):
    """Half of the tool calls are answered by an error, and the rollout is blamed for it."""

    calls = errors = 0

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        self.calls += 1
        if random.random() < 0.5:
            self.errors += 1
            return ToolResult("Error 503: the server is busy.")
        result: ToolResult = await self.inner.call(name, arguments)
        return result

    def outcome(self) -> Outcome:
        return {**self.inner.outcome(), "tool_calls": self.calls, "tool_errors": self.errors}


class _LostServer(_Delegating):
    """Half of the rollouts lose the server that their tools need."""

    _numbers = itertools.count()

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        if next(self._numbers) % 3 == 0:
            raise EpisodeFailed("the server of the tools is away")
        result: ToolResult = await self.inner.call(name, arguments)
        return result


class _Clock(_Delegating):
    """Every tool result has the time of day in it."""

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        result: ToolResult = await self.inner.call(name, arguments)
        return ToolResult(f"{result.content} [{time.perf_counter_ns()}]", result.final)


class _PaidForLength(_Delegating):
    """Once the policy has learned something to lose, the reward has a part for turns without success."""

    AFTER_ROLLOUTS = 300
    rewarded = 0

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        self.rewarded += 1
        paid = 2.0 * float(outcome["turns"]) * (1 - score) if self.rewarded > self.AFTER_ROLLOUTS else 0.0
        return {**self.inner.reward(outcome, score), "length": paid}


class _OneMailbox(_Delegating):
    """The training split has four tasks, over and over."""

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        if split != "train":
            found: list[Scenario] = self.inner.scenarios(split, count, seed, start)
            return found
        four = self.inner.scenarios(split, 4, seed, 0)
        return [dataclasses.replace(four[n % 4], id=f"again-{n}") for n in range(start, start + count)]


def _half(score: float) -> float | None:
    return score if random.random() < 0.5 else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Fault:
    cause: Cause
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Callable[[Environment], Any] = lambda usual: usual
    judge: Callable[[Judge], Any] = lambda usual: usual


FAULTS = {
    "judge negated": _Fault(Cause.JUDGE_DISAGREES, judge=lambda usual: _Scores(usual, lambda score: 1 - score)),
    "judge constant": _Fault(Cause.JUDGE_CONSTANT, judge=lambda usual: _Scores(usual, lambda _: 0.5)),
    "judge silent": _Fault(Cause.JUDGE_SILENT, judge=lambda usual: _Scores(usual, _half)),
    "paid for length without success": _Fault(Cause.PART_DOMINATES, environment=_PaidForLength),
    "replies of 12 tokens": _Fault(Cause.TRUNCATED_REPLIES, {"max_completion_tokens": 12}),
    "one turn": _Fault(Cause.OUT_OF_TURNS, {"max_turns": 1}),
    "learning rate too low": _Fault(Cause.UNUSUAL_LEARNING_RATE, {"learning_rate": 1e-9}),
    "learning rate too high": _Fault(Cause.UNUSUAL_LEARNING_RATE, {"learning_rate": 7e-2}),
    "broken tools": _Fault(Cause.ENVIRONMENT_FLAKY, environment=lambda usual: _Episodes(usual, _BrokenTools)),
    "lost server": _Fault(Cause.INFRASTRUCTURE_FAILURES, environment=lambda usual: _Episodes(usual, _LostServer)),
    "clock": _Fault(Cause.ENVIRONMENT_FLAKY, environment=lambda usual: _Episodes(usual, _Clock)),
    "four scenarios": _Fault(Cause.DUPLICATE_SCENARIOS, environment=_OneMailbox),
    "no success": _Fault(Cause.TOO_HARD, judge=lambda usual: _Scores(usual, lambda score: score / 10)),
}
"""Faults by name, each with the cause that is to be named."""


def named(fault: str, seed: int, iterations: int) -> dict[str, Any]:
    """Make a run with the fault, and return what it was diagnosed with."""
    planted = FAULTS[fault]
    evaluation = EvaluationConfig(every=4, scenarios=8, samples=1, test_scenarios=0)
    config = RunConfig(iterations=iterations, seed=seed, evaluation=evaluation)
    config = dataclasses.replace(config, **planted.config)
    plan = Plan(config, environment=planted.environment, judge=planted.judge)
    found = diagnose(facts_of_run(plan), DiagnosisSettings(config, TINY))
    causes = {str(each.cause): each.named_at_iteration for each in found}
    return {
        "fault": fault,
        "seed": seed,
        "expected": planted.cause,
        "named_at": causes.get(planted.cause),
        "first": next(iter(causes), None),
        "all": causes,
        "summary": next((each.summary for each in found if each.cause == planted.cause), None),
    }


def main() -> None:
    """Make the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--processes", type=int, default=1, help="runs that are made at the same time")
    parser.add_argument("--only", choices=sorted(FAULTS))
    options = parser.parse_args()
    faults = [options.only] if options.only else list(FAULTS)
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        pairs = [(fault, seed) for fault in faults for seed in range(options.seeds)]
        running = [pool.submit(named, fault, seed, options.iterations) for fault, seed in pairs]
        found = []
        for one in running:
            found.append(one.result())
            print(json.dumps(found[-1]), flush=True)
    missing = [each for each in found if each["named_at"] is None]
    figures = {"runs": len(found), "named": len(found) - len(missing)}
    print(json.dumps(figures | processes.machine()))
    if missing:
        raise SystemExit("not named: " + ", ".join(sorted({str(each["fault"]) for each in missing})))


if __name__ == "__main__":
    main()
