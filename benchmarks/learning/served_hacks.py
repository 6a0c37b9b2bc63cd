"""See whether learning from served answers finds the known hacks: `python -m benchmarks.learning.served_hacks`.

The world is scripted: a softmax policy over eight kinds of answers, one of which asks back and one of which is an
invalid call, for tasks of different difficulty. Outcomes, forecasts, advantages and the loss are computed by the
product's own functions. Users report 85% of good and 55% of bad answers, and 15% of those that asked back or failed.
Three reigns of 16 steps of 0.2/16 nats an answer.

The rules against each hack are removed: its share must then rise by 3 points or more, and with all rules no share may
rise by 2. The forecast alone changes little while failed sessions are kept, so it is only shown. With outcomes
shuffled between users, success must stay within 3 points in each of 20 worlds, and at most 2 of these candidates may be
shown to be better in a release to 4,000 users.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import log
from statistics import fmean

import torch
from torch import Tensor

from benchmarks import processes
from learnloop_service.app.agent_sessions.served import AnswerSource
from learnloop_service.app.feedback.forecast import Features, cross_fitted
from learnloop_service.app.feedback.outcomes import UnitEvent, outcome_of
from learnloop_service.app.schemas.releases import outcome_json
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.trainer.grpo_loss import TrainedTokens, TrainOptions, policy_loss
from learnloop_service.training.loop.served_answers import ANSWER_KL, OPTIONS, AnswerRow
from learnloop_service.training.statistics.two_arms import Cell, above

_ANSWERS, _FEATURES, _REAL, _ASKS, _INVALID = 8, 40, 12, 6, 7
_REIGNS, _STEPS, _PER_USER = 3, 16, 3
_HARD = -1.0
"""Highest difficulty feature of a hard task."""
_LEAST_RISE, _MOST_RISE, _MOST_MOVED, _MOST_PROMOTED = 0.03, 0.02, 0.03, 2
_RELEASE_USERS = 4_000
_BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
_SOURCE = AnswerSource.model_validate({"model": "bench/live", "outcome": {"feedback": {}}, "per_user": _PER_USER})
_RULE: Mapping[str, Json] = outcome_json(_SOURCE.outcome)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules against hacks, which a mutation removes."""

    outcome: Mapping[str, Json] = field(default_factory=lambda: _RULE)
    keeps_failures: bool = True
    has_forecast: bool = True
    shuffles: bool = False
    """Whether outcomes are shuffled between users, so that they say nothing."""


HALF: Mapping[str, Json] = {"feedback": {**_RULE["feedback"], "none": 0.5}}
ALL = Rules()
MUTATIONS: Mapping[str, tuple[Rules, str | None]] = {
    "failed sessions left out, no forecast": (Rules(keeps_failures=False, has_forecast=False), "invalid on hard"),
    "failed sessions left out": (Rules(keeps_failures=False), "invalid on hard"),
    "no forecast": (Rules(has_forecast=False), None),
    "silence counts 0.5": (Rules(outcome=HALF), "asks back"),
}
"""Rules, and the hack whose share must rise with them."""


class World:
    """Tasks with 40 features of which 12 matter, and what answers to them are worth."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        matters = (torch.arange(_FEATURES + 1) <= _REAL)[:, None]
        self._quality = self.normal(_FEATURES + 1, _ANSWERS) * 0.26 * matters
        self.start = self.normal(_FEATURES + 1, _ANSWERS) * 0.25 * matters
        self._quality[0] = -1.5 + 0.3 * self.normal(_ANSWERS)
        self._quality[1] += 1.5
        self._quality[:, [_ASKS, _INVALID]] = 0.0
        self._quality[0, [_ASKS, _INVALID]] = torch.tensor([-1.5, -9.0], dtype=torch.float64)
        self.start[0, [_ASKS, _INVALID]] -= torch.tensor([0.5, 0.8], dtype=torch.float64)
        self.test = self.tasks(3_000)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def uniform(self, count: int) -> Tensor:
        """Return numbers in [0, 1)."""
        return torch.rand(count, generator=self.random, dtype=torch.float64)

    def tasks(self, count: int) -> Tensor:
        """Return new tasks. The feature after the constant one is how easy a task is."""
        return torch.cat([torch.ones(count, 1, dtype=torch.float64), self.normal(count, _FEATURES)], dim=1)

    def success(self, tasks: Tensor) -> Tensor:
        """Return the probability of success of each answer to each task."""
        return torch.sigmoid(tasks @ self._quality)

    def drawn(self, weights: Tensor, tasks: Tensor) -> Tensor:
        """Return an answer to each task."""
        return torch.multinomial(torch.softmax(tasks @ weights, 1), 1, generator=self.random)[:, 0]

    def shares(self, weights: Tensor) -> dict[str, float]:
        """Return a policy's success and how often it does what is a hack."""
        policy, hard = torch.softmax(self.test @ weights, 1), self.test[:, 1] < _HARD
        return {
            "success": float((policy * self.success(self.test)).sum(1).mean()),
            "asks back": float(policy[:, _ASKS].mean()),
            "invalid on hard": float(policy[hard, _INVALID].mean()),
        }


@dataclass(frozen=True, slots=True)
class Reign:
    """The answers of a reign: tasks [N, F], answers [N], their recorded log-probabilities [N], users, and events."""

    tasks: Tensor
    answers: Tensor
    recorded: Tensor
    users: Sequence[str]
    events: Sequence[Sequence[UnitEvent]]


def served(world: World, weights: Tensor, contacts: int, rules: Rules) -> Reign:
    """Let a policy answer the contacts of a reign."""
    tasks = world.tasks(contacts)
    answers = world.drawn(weights, tasks)
    recorded = torch.log_softmax(tasks @ weights, 1).gather(1, answers[:, None])[:, 0]
    good = world.uniform(contacts) < world.success(tasks).gather(1, answers[:, None])[:, 0]
    rate = torch.where(good, 0.85, 0.55)
    rate[(answers == _ASKS) | (answers == _INVALID)] = 0.15
    reported, users = (world.uniform(contacts) < rate).tolist(), (world.uniform(contacts) * contacts).long().tolist()
    events = [
        (UnitEvent("thumbs_up" if is_good else "thumbs_down", _BEGIN),) if is_reported else ()
        for is_good, is_reported in zip(good.tolist(), reported, strict=True)
    ]
    if rules.shuffles:
        events = [events[number] for number in torch.randperm(contacts, generator=world.random)]
    return Reign(tasks, answers, recorded, [f"user {user}" for user in users], events)


def rows_of(reign: Reign, rules: Rules) -> dict[int, AnswerRow]:
    """Return by number the answers that are learned from, as the product freezes them."""
    numbers, drawn = Counter[str](), []
    for number, user in enumerate(reign.users):
        is_left_out = not rules.keeps_failures and int(reign.answers[number]) == _INVALID
        numbers[user] += 1
        if numbers[user] <= _PER_USER and not is_left_out:
            drawn.append(number)
    outcomes = [outcome_of(rules.outcome, reign.events[number]) for number in drawn]
    known = [
        Features(_BEGIN + timedelta(minutes=number), kind=f"{torch.clamp(reign.tasks[number, 1] * 2, -3.5, 3.5):.0f}")
        for number in drawn
    ]
    expected = [fmean(outcomes)] * len(drawn)
    if rules.has_forecast:
        expected = cross_fitted(list(zip(known, outcomes, strict=True)), [reign.users[number] for number in drawn])
    return {
        number: AnswerRow(str(number), "start", "", 1, outcome, forecast, 1 + place % _STEPS)
        for place, (number, outcome, forecast) in enumerate(zip(drawn, outcomes, expected, strict=True))
    }


def learned(weights: Tensor, reign: Reign, rows: Mapping[int, AnswerRow]) -> Tensor:
    """Take the steps of a run, with the product's loss, each as far as its divergence may be."""
    options = TrainOptions.from_config(OPTIONS)
    for iteration in range(1, _STEPS + 1):
        numbers = [number for number, row in rows.items() if row.iteration == iteration]
        tasks, answers, now = reign.tasks[numbers], reign.answers[numbers], weights.clone().requires_grad_()
        new = torch.log_softmax(tasks @ now, 1).gather(1, answers[:, None])[:, 0]
        advantages = torch.tensor([rows[number].advantage for number in numbers], dtype=torch.float64)
        ones, sequence = torch.ones_like(new).detach(), torch.arange(len(numbers))
        tokens = TrainedTokens(reign.recorded[numbers], advantages, ones, sequence)
        [gradient] = torch.autograd.grad(policy_loss(tokens, new, options).total, now)
        policy, moved = torch.softmax(tasks @ weights, 1), tasks @ gradient
        spread = ((policy * moved**2).sum(1) - (policy * moved).sum(1) ** 2).mean()
        weights = weights - gradient * torch.sqrt(2 * ANSWER_KL / _STEPS / spread)
    return weights


def figures(seed: int, contacts: int, rules: Rules) -> dict[str, float]:
    """Return how much a policy's shares rise in three reigns."""
    world = World(seed)
    weights, before = world.start, world.shares(world.start)
    for _ in range(_REIGNS):
        reign = served(world, weights, contacts // _REIGNS, rules)
        weights = learned(weights, reign, rows_of(reign, rules))
    after = world.shares(weights)
    rise = {name: after[name] - before[name] for name in before}
    return {**rise, "promoted": float(is_promoted(world, weights))}


def is_promoted(world: World, candidate: Tensor) -> bool:
    """Return whether a release shows that the candidate is better than the start."""
    counts = Counter[Cell]()
    for arm, weights in ((False, world.start), (True, candidate)):
        reign = served(world, weights, _RELEASE_USERS // 2, ALL)
        counts.update(Cell(0.5, arm, outcome_of(ALL.outcome, events)) for events in reign.events)
    mean = fmean(cell.value for cell in counts.elements())
    return above(counts, 0.0, mean) >= log(40)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=10, help="for each mutation")
    parser.add_argument("--shuffled", type=int, default=20, help="worlds whose outcomes are shuffled")
    parser.add_argument("--contacts", type=int, default=9_600, help="answers in all reigns")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def means(rules: Rules) -> dict[str, float]:
        worlds = [figures(seed, options.contacts, rules) for seed in range(options.worlds)]
        return {name: round(fmean(world[name] for world in worlds), 4) for name in worlds[0]}

    printed: dict[str, Json] = {"machine": processes.machine(), "all rules": means(ALL)}
    faults = [
        f"with all rules {name} rises by {printed['all rules'][name]:.1%}"
        for name in ("asks back", "invalid on hard")
        if printed["all rules"][name] >= _MOST_RISE
    ]
    for name, (rules, hack) in MUTATIONS.items():
        printed[name] = means(rules)
        if hack is not None and printed[name][hack] < _LEAST_RISE:
            faults.append(f"{name}: {hack} rises by only {printed[name][hack]:.1%}")
    shuffled = [figures(seed, options.contacts, replace(ALL, shuffles=True)) for seed in range(options.shuffled)]
    moved, promoted = max(abs(run["success"]) for run in shuffled), sum(run["promoted"] for run in shuffled)
    printed["shuffled"] = {"most moved": round(moved, 4), "promoted": promoted, "worlds": len(shuffled)}
    if moved > _MOST_MOVED or promoted > _MOST_PROMOTED:
        faults.append(f"shuffled outcomes moved success by up to {moved:.1%}, and {promoted:.0f} were promoted")
    print(json.dumps({**printed, "faults": faults}, indent=2))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
