"""Learn from single answers that users got, beside GRPO with known rewards: `python -m benchmarks.learning.served`.

The champion is the tiny email agent after some of its training. In each of three reigns users ask it 1,000 questions,
each answered once at temperature 1. Of the right answers 85% are reported and of the wrong ones 55%; silence counts 0.
Then the reign's answers train it, one group a step: outcome minus forecast, each answer once. GRPO has as many
rollouts, eight on each question, and knows all rewards.

    python -m benchmarks.learning.served --seeds 0 1 2 3 4
    python -m benchmarks.learning.served --seeds 0 --arms "four steps" "no baseline" --device cuda

Engine, environment and judge are real, without a service between them. Prints each reign's figures as they come. Fails
unless the first arm gains on average at least 80% of what GRPO gains in sampled success at held-out questions. An arm
takes about eight minutes of one core a seed.
"""

import argparse
import json
import logging
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Literal

import structlog

from benchmarks import processes
from benchmarks.learning.engine_learning import CONFIG, ENVIRONMENT, Agent, scored, trajectory
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.engine.engine import finish
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.trajectories import Group, TrainingTrajectory, sequences
from learnloop_service.training.loop.served_answers import ANSWER_KL, MOST_MOVED, OPTIONS

GRPO = "grpo"
GOAL = 0.8
"""Least share of GRPO's gain."""
_FIRST = 100_000
"""Number of the first question of a user, beyond those that the champion was trained on."""
_HELD_OUT = 320
_AT_ONCE = 64
MEASURED = 100
"""Number of answers at which it is measured how far the policy has moved."""


@dataclass(frozen=True, slots=True)
class ServedArm:
    """A way to learn from the answers of a reign."""

    steps: int = 16
    step_nats: float = ANSWER_KL / 16
    """How far a step may move an answer."""
    learning_rate: float = CONFIG.learning_rate
    outcomes: Literal["reported", "shuffled", "constant"] = "reported"
    """`shuffled` and `constant` say nothing: what is gained with them is not learned from users."""
    has_baseline: bool = True
    """Whether the mean outcome is subtracted. The questions are alike, so that no forecast is better than the mean."""
    drops_silent: bool = False
    per_user: int | None = 3
    trained: float = 1.0
    """Share of the users whose answers are trained on. A run of the service holds out the others'."""
    most_moved: float = MOST_MOVED
    """By how many nats a reign may move held-out answers."""
    min_probability: float = 0.01
    """Tokens that were sampled with a smaller probability are left out."""
    bot: bool = False
    """Whether one user asks a third of all questions, and is content with every answer."""


ARMS: Mapping[str, ServedArm] = {
    "batch mean": ServedArm(),
    "three fifths": ServedArm(trained=0.6),
    "less far": ServedArm(trained=0.6, most_moved=ANSWER_KL),
    "no bounds": ServedArm(trained=0.6, most_moved=math.inf, min_probability=0.0),
    "no baseline": ServedArm(has_baseline=False),
    "constant": ServedArm(has_baseline=False, outcomes="constant"),
    "shuffled": ServedArm(outcomes="shuffled"),
    "shuffled without baseline": ServedArm(has_baseline=False, outcomes="shuffled"),
    "silent dropped": ServedArm(drops_silent=True),
    "bot": ServedArm(bot=True),
    "bot without bound": ServedArm(bot=True, per_user=None),
    "four steps": ServedArm(steps=4, learning_rate=CONFIG.learning_rate / 10),
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a question."""

    trajectory: TrainingTrajectory
    success: bool

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(map(len, self.trajectory.conversations[0].exact.values()))


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """An answer that a user got, and its outcome: None if nothing was reported."""

    attempt: Attempt
    user: int
    outcome: float | None


class Market(Agent):
    """An agent whose champion answers users, in an engine with the models that the arms train."""

    def __init__(self, directory: Path, device: str, seed: int, champion_steps: int) -> None:
        super().__init__(directory, device)
        self._seed = seed
        self._first_reign: list[Attempt] = []
        for iteration in range(1, champion_steps + 1):
            self.grpo_step((iteration - 1) * CONFIG.groups_per_iteration, iteration)
        self.champion = self.newest

    @property
    def newest(self) -> str:
        """The newest checkpoint of the model in training."""
        return f"{self._model.full_name}@{self._engine.registry.newest(self._model.id).step}"

    def fork(self, checkpoint: str, name: str) -> None:
        """Train a new model from now on, which begins as the checkpoint."""
        self._model = self._engine.registry.create(
            project="benchmark", name=name.replace(" ", "-"), base_model=checkpoint
        )

    def held_out(self) -> float:
        """Return the newest checkpoint's sampled success at questions that no user asks."""
        return fmean(self.successes(_HELD_OUT))

    def successes(self, questions: int) -> list[bool]:
        """Return whether each of that many such questions is answered rightly. All checkpoints have the same seeds."""
        return [attempt.success for attempt in self._attempts(ENVIRONMENT.scenarios("test", questions, 0), "test")]

    def log_ratios(self, attempts: Sequence[Attempt]) -> list[float]:
        """Return by how much the newest checkpoint raises the log-probability of each attempt."""
        target = self._engine.registry.resolve(self._model.full_name)
        groups = [(replace(one.trajectory, reward=1.0), TrainingTrajectory((), -1.0)) for one in attempts]
        recorded = list(sequences(groups, self._engine.tokenizer(target), scale_rewards=False))
        parts = [TokenSequence(one.ids, one.trained, one.logprobs) for one in recorded]
        scores = finish(self._engine.score(target, parts)).logprobs
        return [fsum(new) - fsum(part.logprobs) for new, part in zip(scores or (), parts, strict=True)]

    def served(self, reign: int, sessions: int) -> list[Attempt]:
        """Return the newest checkpoint's answers in a reign. In the first one they are the champion's in every arm."""
        if reign == 0 and self._first_reign:
            return self._first_reign
        questions = ENVIRONMENT.scenarios("train", sessions, self._seed, _FIRST + reign * sessions)
        attempts = self._attempts(questions, f"reign {reign}")
        if reign == 0:
            self._first_reign = attempts
        return attempts

    def moved(self, attempts: Sequence[Attempt]) -> float:
        """Return by how many nats the newest checkpoint differs from the one that made the attempts, on average."""
        return -fmean(self.log_ratios(attempts))

    def grpo_step(self, first: int, iteration: int) -> None:
        """Take one of GRPO's steps, as the demo does, on the questions from number `first`."""
        questions, count = CONFIG.groups_per_iteration, CONFIG.rollouts_per_group
        scenarios = ENVIRONMENT.scenarios("train", questions, self._seed, first)
        attempts = self._attempts([scenario for scenario in scenarios for _ in range(count)], f"{first}")
        trained = [attempt.trajectory for attempt in attempts]
        groups = [tuple(trained[at : at + count]) for at in range(0, len(trained), count)]
        rate = CONFIG.learning_rate * min(1.0, iteration / CONFIG.warmup_iterations)
        self.step(groups, TrainOptions(learning_rate=rate, token_weighting="token", max_kl=0.02))

    def step(self, groups: Sequence[Group], options: TrainOptions) -> Mapping[str, float]:
        """Take one step and return its metrics."""
        return finish(self._engine.train(self._model.id, groups, options)).metrics

    def _attempts(self, scenarios: Sequence[Scenario], seed: str) -> list[Attempt]:
        attempts = []
        for at in range(0, len(scenarios), _AT_ONCE):
            tries = self.play(scenarios[at : at + _AT_ONCE], 1.0, f"{self._seed}/{seed}/{at}")
            for one_try, verdict in zip(tries, scored(tries), strict=True):
                reward = sum(ENVIRONMENT.reward(*verdict).values())
                attempts.append(Attempt(trajectory(one_try, reward), ENVIRONMENT.success(*verdict)))
        return attempts


def recorded(attempts: Sequence[Attempt], *, bot: bool, rng: Random) -> list[ServedAnswer]:
    """Return what is recorded of the answers, to as many users as there are answers."""
    answers = []
    for number, attempt in enumerate(attempts):
        user, is_reported = rng.randrange(len(attempts)), rng.random() < (0.85 if attempt.success else 0.55)
        answer = ServedAnswer(attempt, user, float(attempt.success) if is_reported else None)
        answers.append(replace(answer, user=-1, outcome=1.0) if bot and number % 3 == 0 else answer)
    return answers


def chosen(
    answers: Sequence[ServedAnswer], arm: ServedArm, rng: Random, *, held_out: bool = False
) -> list[tuple[Attempt, float]]:
    """Return the answers that the arm learns from in random order, with their outcomes, or those that it holds out."""
    numbers, rows = Counter[int](), []
    for answer in rng.sample(answers, len(answers)):
        numbers[answer.user] += 1
        is_held_out = Random(f"split/{answer.user}").random() >= arm.trained
        if (arm.drops_silent and answer.outcome is None) or is_held_out is not held_out:
            continue
        if arm.per_user is None or numbers[answer.user] <= arm.per_user:
            rows.append((answer.attempt, 1.0 if arm.outcomes == "constant" else answer.outcome or 0.0))
    if arm.outcomes == "shuffled":
        outcomes = [outcome for _, outcome in rows]
        rng.shuffle(outcomes)
        rows = [(attempt, outcome) for (attempt, _), outcome in zip(rows, outcomes, strict=True)]
    return rows


def learn(
    market: Market,
    arm: ServedArm,
    rows: Sequence[tuple[Attempt, float]],
    others: Sequence[Attempt],
    after: Callable[[int], None] = lambda _: None,
) -> tuple[int, float]:
    """Take the steps of a reign, and call `after` with the number of each. Return the number of those that are used,
    and by how many nats these have moved other answers on average."""
    expected, moved = fmean(outcome for _, outcome in rows) if arm.has_baseline else 0.0, 0.0
    tokens = fmean(attempt.tokens for attempt, _ in rows)
    bounds = {"max_kl": arm.step_nats / tokens, "min_probability": arm.min_probability}
    options = TrainOptions.from_config({**OPTIONS, "learning_rate": arm.learning_rate, **bounds})
    for number in range(arm.steps):
        part = rows[number :: arm.steps]
        group = [replace(attempt.trajectory, reward=outcome - expected) for attempt, outcome in part]
        # The engine subtracts the group's mean. One more trajectory without tokens makes it 0.
        group.append(TrainingTrajectory((), -sum(one.reward for one in group)))
        market.step([tuple(group)], options)
        before, moved = moved, market.moved(others)
        after(number + 1)
        if moved > arm.most_moved:
            return number, before
    return arm.steps, moved


def serve(market: Market, name: str, seed: int, sessions: int, reigns: int, report: Callable[..., None]) -> float:
    """Return what an arm has gained at held-out questions after its reigns."""
    arm, checkpoint = ARMS[name], market.champion
    for reign in range(reigns):
        market.fork(checkpoint, f"{name}-{reign}")
        rng = Random(f"{seed}/{reign}")
        attempts = market.served(reign, sessions)
        rows = chosen(recorded(attempts, bot=arm.bot, rng=rng), arm, rng)
        trained = {id(attempt) for attempt, _ in rows}
        others = [attempt for attempt in attempts if id(attempt) not in trained] or attempts
        steps, moved = learn(market, arm, rows, others[:MEASURED])
        checkpoint = f"{market.newest.partition('@')[0]}@{steps}"
        market.fork(checkpoint, f"{name}-{reign}-used")
        figures = {"held_out": round(market.held_out(), 3), "moved": round(moved, 3)}
        report(arm=name, reign=reign + 1, answers=len(rows), steps=steps, **figures)
    return figures["held_out"]


def grpo(market: Market, rollouts: int, report: Callable[..., None]) -> float:
    """Return GRPO's success at held-out questions after as many rollouts."""
    market.fork(market.champion, GRPO)
    steps = rollouts // (CONFIG.groups_per_iteration * CONFIG.rollouts_per_group)
    for iteration in range(1, steps + 1):
        market.grpo_step(_FIRST + iteration * CONFIG.groups_per_iteration, iteration)
    success = market.held_out()
    report(arm=GRPO, steps=steps, held_out=round(success, 3))
    return success


def measure(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return what each arm gains in held-out success."""

    def report(**figures: Json) -> None:
        print(json.dumps({"seed": seed, **figures}), flush=True)

    sessions, reigns = options.sessions, options.reigns
    with tempfile.TemporaryDirectory() as directory:
        market = Market(Path(directory), options.device, seed, options.champion_steps)
        before = market.held_out()
        report(arm="champion", held_out=round(before, 3))
        after = {
            name: grpo(market, reigns * sessions, report)
            if name == GRPO
            else serve(market, name, seed, sessions, reigns, report)
            for name in options.arms
        }
    return {name: success - before for name, success in after.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=(*ARMS, GRPO), default=["batch mean", GRPO])
    parser.add_argument("--reigns", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=1_000, help="in each reign")
    parser.add_argument("--champion-steps", type=int, default=6, help="of GRPO that made the champion")
    options = parser.parse_args()
    set_cpu_mode()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(json.dumps({"machine": processes.machine()}), flush=True)
    gains = defaultdict[str, list[float]](list)
    for seed in options.seeds:
        for name, gain in measure(options, seed).items():
            gains[name].append(gain)
    mean = {name: fmean(values) for name, values in gains.items()}
    print(json.dumps({"gains": {name: round(gain, 3) for name, gain in mean.items()}, "goal": GOAL}))
    first = options.arms[0]
    if GRPO not in mean or first == GRPO:
        return 0
    print(json.dumps({"share_of_grpo": {name: round(gain / mean[GRPO], 3) for name, gain in mean.items()}}))
    return 0 if mean[first] >= GOAL * mean[GRPO] else 1


if __name__ == "__main__":
    sys.exit(main())
