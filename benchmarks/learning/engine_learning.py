"""Measure how the tiny email agent learns on a device: `python -m benchmarks.learning.engine_learning --device cuda`.

This is the demo's loop without service, database or HTTP, so that it runs on a machine that has little more than torch.
Environment, judge, engine and settings are those of the demo. The held-out test questions are asked before and after.
Run it with `--device cpu` for the spread that a GPU's curve should lie in.

`--base-model DIRECTORY --demonstrations 16 --learning-rate 2e-5` trains a third-party model instead, after a warm start
on that many conversations of the environment's oracle; `--inbox` and `--questions` use a prepared mailbox
(docs/data.md); `--conversations FILE` saves held-out conversations for reading.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from learnloop_service.environment.base import Episode, Outcome, Scenario, ToolError
from learnloop_service.environment.email_search.environment import ImportedEmailSearch, SyntheticEmailSearch
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.engine.__main__ import TINY_BASE, TINY_NAME
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.registry.model_record import Target
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import ContextTooLong, Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.sft import Example, SftOptions
from learnloop_service.training.engine.trainer.trajectories import Conversation, TrainingTrajectory
from learnloop_service.training.tuning import Tuning
from learnloop_service.training.types import RunConfig

CONFIG = RunConfig()
Questions = SyntheticEmailSearch | ImportedEmailSearch
ENVIRONMENT = SyntheticEmailSearch()
JUDGE = ReferenceJudge()


@dataclass(slots=True)
class Try:
    """One conversation in progress."""

    episode: Episode
    seeds: Random
    messages: list[dict[str, Any]] = field(default_factory=list)
    exact: dict[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[int, tuple[float, ...]] = field(default_factory=dict)
    over: bool = False

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [tool.openai() for tool in self.episode.tools]


class Agent:
    """The engine with one trainable model."""

    def __init__(
        self,
        directory: Path,
        device: str,
        base: Path = TINY_BASE,
        environment: Questions = ENVIRONMENT,
        *,
        tuning: Tuning | None = None,
        fp8_training: bool = False,
        train_threads: int = 1,
    ) -> None:
        self.environment = environment
        registry = Registry(directory, {TINY_NAME: base})
        self._engine = Engine(
            registry, Sampler(), device=device, fp8_training=fp8_training, train_threads=train_threads
        )
        self._model = registry.create(project="benchmark", name="agent", base_model=TINY_NAME, tuning=tuning)

    def play(self, scenarios: Sequence[Scenario], temperature: float, seed: str, step: int | None = None) -> list[Try]:
        """Try all scenarios concurrently, once each, with that step's checkpoint (None: the newest)."""
        name = self._model.full_name if step is None else f"{self._model.full_name}@{step}"
        target = self._engine.registry.resolve(name)
        tries = [Try(self.environment.episode(scenario), Random(f"{seed}/{n}")) for n, scenario in enumerate(scenarios)]
        for one_try in tries:
            one_try.messages += one_try.episode.messages()
            self._ask(target, one_try, temperature)
        while self._engine.sampler.busy:
            self._engine.sampler.step()
        return tries

    def train(
        self, groups: Sequence[Sequence[tuple[Try, float]]], learning_rate: float, **more: Any
    ) -> Mapping[str, float]:
        """Take one GRPO step on the tries and their rewards; `more` are further training options."""
        options = TrainOptions(learning_rate=learning_rate, token_weighting="token", max_kl=0.02, **more)
        trajectories = [tuple(trajectory(one_try, reward) for one_try, reward in group) for group in groups]
        return finish(self._engine.train(self._model.id, trajectories, options)).metrics

    def imitate(self, demonstrations: Sequence[Mapping[str, Any]], options: SftOptions) -> Mapping[str, float]:
        """Take supervised steps on conversations."""
        examples = [
            Example(tuple(demonstration["messages"]), demonstration["tools"]) for demonstration in demonstrations
        ]
        return finish(self._engine.train_supervised(self._model.id, examples, options)).metrics

    def _ask(self, target: Target, one_try: Try, temperature: float) -> None:
        tokenizer = self._engine.tokenizer(target)
        request = SampleRequest(
            tuple(tokenizer.prompt(one_try.messages, one_try.tools, exact=one_try.exact)),
            target.key,
            CONFIG.max_completion_tokens,
            temperature=temperature,
            seed=one_try.seeds.getrandbits(53),
            stop_ids=frozenset(tokenizer.stop_ids),
        )
        self._engine.submit(target, request, None, partial(self._answered, target, one_try, temperature))

    def _answered(self, target: Target, one_try: Try, temperature: float, sample: Sample | Exception) -> None:
        if isinstance(sample, ContextTooLong):
            one_try.episode.end("out_of_turns", "the conversation fills the context")
            one_try.over = True
            return
        if isinstance(sample, Exception):
            raise sample
        tokenizer = self._engine.tokenizer(target)
        ids = sample.ids[:-1] if sample.ids[-1] in tokenizer.stop_ids else sample.ids
        reply = tokenizer.parse(tokenizer.decode(ids), call_seed=str(len(one_try.messages)))
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        one_try.exact[len(one_try.messages)] = tuple(sample.ids)
        one_try.logprobs[len(one_try.messages)] = tuple(sample.logprobs)
        one_try.messages.append({"role": "assistant", "content": reply.content, "tool_calls": calls or None})
        asyncio.run(_execute(one_try, calls))
        if len(one_try.exact) == one_try.episode.max_turns and not one_try.over:
            one_try.episode.end("out_of_turns", "no answer")
            one_try.over = True
        if not one_try.over:
            self._ask(target, one_try, temperature)


async def _execute(one_try: Try, calls: Sequence[Mapping[str, Any]]) -> None:
    if not calls:
        one_try.episode.end("malformed", "no tool call")
        one_try.over = True
    for call in calls:
        try:
            result = await one_try.episode.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        except ToolError as error:
            one_try.episode.end("malformed", str(error))
            one_try.over = True
            return
        if result.final:
            one_try.over = True
            return
        one_try.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.content})


def trajectory(one_try: Try, reward: float) -> TrainingTrajectory:
    conversation = Conversation(tuple(one_try.messages), one_try.tools, one_try.exact, one_try.logprobs)
    return TrainingTrajectory((conversation,), reward)


def scored(tries: Sequence[Try]) -> list[tuple[Outcome, float]]:
    """Return the outcome and the judge's score of each try."""
    outcomes = [one_try.episode.outcome() for one_try in tries]

    async def judge() -> list[float]:
        scores = []
        for number, (one_try, outcome) in enumerate(zip(tries, outcomes, strict=True)):
            verdict = await JUDGE.judge(one_try.episode.scenario, [Candidate(str(number), outcome, one_try.messages)])
            scores.append(verdict.scores[0].value or 0.0)
        return scores

    return list(zip(outcomes, asyncio.run(judge()), strict=True))


def evaluated(agent: Agent, seed: int, records: list[dict[str, Any]], stage: str) -> list[float]:
    """Evaluate on held-out scenarios: success when sampled, success when greedy, and mean reward when sampled.

    Success is the share of tries that did the whole job. Appends the sampled tries to `records`.
    """
    environment = agent.environment
    scenarios = environment.scenarios("test", CONFIG.evaluation.test_scenarios, seed)
    shares = []
    for temperature, samples in ((1.0, 2), (0.0, 1)):
        tries = agent.play([scenario for scenario in scenarios for _ in range(samples)], temperature, f"{seed}/test")
        verdicts = scored(tries)
        shares.append(fmean(environment.success(*verdict) for verdict in verdicts))
        if temperature:
            rewards = [sum(environment.reward(*verdict).values()) for verdict in verdicts]
            records += [
                {
                    "seed": seed,
                    "stage": stage,
                    "reward": reward,
                    "finish": verdict[0].get("finish"),
                    "said": one_try.messages,
                }
                for one_try, reward, verdict in zip(tries, rewards, verdicts, strict=True)
            ]
    return [round(value, 3) for value in (*shares, fmean(rewards))]


def rewarded_groups(
    agent: Agent, seed: int, iteration: int, config: RunConfig = CONFIG, step: int | None = None
) -> list[list[tuple[Try, float]]]:
    """Return an iteration's groups: its scenarios, each tried several times, with rewards.

    The tries use the checkpoint of `step` (None: the newest).
    """
    start = (iteration - 1) * config.groups_per_iteration
    environment = agent.environment
    scenarios = environment.scenarios("train", config.groups_per_iteration, seed, start)
    count = config.rollouts_per_group
    tries = agent.play([scenario for scenario in scenarios for _ in range(count)], 1.0, f"{seed}/{iteration}", step)
    rewarded = [
        (one_try, sum(environment.reward(*verdict).values()))
        for one_try, verdict in zip(tries, scored(tries), strict=True)
    ]
    return [rewarded[at : at + count] for at in range(0, len(rewarded), count)]


def learn(options: argparse.Namespace, seed: int, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one run's figures: success and mean reward per stage, mean reward per iteration, seconds."""
    started = time.perf_counter()
    stages: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        environment: Questions = ENVIRONMENT
        if options.inbox:
            environment = ImportedEmailSearch(options.inbox, "mail", json.loads(options.questions.read_text()))
        agent = Agent(
            Path(directory),
            options.device,
            options.base_model,
            environment,
            tuning=Tuning("lora", rank=options.rank, alpha=2 * options.rank) if options.rank else None,
            fp8_training=options.training_weights == "fp8",
        )
        stages["base"] = evaluated(agent, seed, records, "base")
        if options.demonstrations:
            from learnloop_service.training.loop.warm_start import (
                oracle_demonstrations,  # needs more packages than the rest
            )

            demonstrations = asyncio.run(oracle_demonstrations(environment, options.demonstrations, seed))
            demonstrations = [demonstration for _ in range(options.epochs) for demonstration in demonstrations]
            agent.imitate(demonstrations, SftOptions(batch_size=4, learning_rate=options.warm_learning_rate))
            stages["warm start"] = evaluated(agent, seed, records, "warm start")
        rewards = []
        for iteration in range(1, options.iterations + 1):
            groups = rewarded_groups(agent, seed, iteration)
            rewards.append(round(fmean(reward for group in groups for _, reward in group), 3))
            agent.train(groups, options.learning_rate * min(1.0, iteration / CONFIG.warmup_iterations))
        stages["trained"] = evaluated(agent, seed, records, "trained")
    return {
        "device": options.device,
        "seed": seed,
        "learning_rate": options.learning_rate,
        "rank": options.rank,
        "training_weights": options.training_weights,
        "stages": list(stages),
        "sampled": [values[0] for values in stages.values()],
        "greedy": [values[1] for values in stages.values()],
        "reward": [values[2] for values in stages.values()],
        "rewards": rewards,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.engine_learning", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=CONFIG.iterations)
    parser.add_argument("--base-model", type=Path, default=TINY_BASE, metavar="DIRECTORY")
    parser.add_argument("--inbox", type=Path, metavar="FILE", help="a prepared one, in place of invented ones")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="about the prepared inbox")
    parser.add_argument("--learning-rate", type=float, default=CONFIG.learning_rate)
    parser.add_argument("--rank", type=int, help="of a LoRA adapter, which is trained in place of all weights")
    parser.add_argument("--training-weights", choices=("exact", "fp8"), default="exact", help="what it is trained over")
    parser.add_argument("--demonstrations", type=int, default=0, help="of the oracle, for a warm start")
    parser.add_argument("--epochs", type=int, default=1, help="of the demonstrations")
    parser.add_argument("--warm-learning-rate", type=float, default=3e-4)
    parser.add_argument("--conversations", type=Path, metavar="FILE", help="for held-out ones, as JSON lines")
    options = parser.parse_args()
    set_cpu_mode()
    for seed in options.seeds:
        records: list[dict[str, Any]] = []
        print(json.dumps(learn(options, seed, records)), flush=True)
        if options.conversations:
            with options.conversations.open("a") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
