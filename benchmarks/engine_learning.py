"""`python -m benchmarks.engine_learning --device cuda`: how the tiny email agent learns on a device.

The demo's loop without service, database or HTTP, so that it runs on a machine that has little more than torch: the
environment, the judge and the engine are those of a run, the settings are the demo's. The held-out test questions are
asked before and after. Run it with `--device cpu` for the spread that a GPU's curve should lie in.
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

from environment.base import Episode, Outcome, Scenario, Split, ToolError
from environment.email_search.environment import SyntheticEmailSearch
from judges.base import Candidate
from judges.reference import ReferenceJudge
from training.engine.__main__ import TINY_BASE, TINY_NAME
from training.engine.cpu_mode import set_cpu_mode
from training.engine.engine import Engine, finish
from training.engine.registry.model_record import Target
from training.engine.registry.registry import Registry
from training.engine.sampling.requests import Sample, SampleRequest
from training.engine.sampling.sampler import Sampler
from training.engine.trainer.grpo_loss import TrainOptions
from training.engine.trainer.trajectories import Conversation, Trajectory
from training.types import RunConfig

CONFIG = RunConfig()
ENVIRONMENT = SyntheticEmailSearch()
JUDGE = ReferenceJudge()


@dataclass(slots=True)
class Try:
    """One conversation under way."""

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

    def __init__(self, directory: Path, device: str) -> None:
        self._engine = Engine(Registry(directory, {TINY_NAME: TINY_BASE}), Sampler(), device=device)
        self._model = self._engine.registry.create(project="benchmark", name="agent", base_model=TINY_NAME)

    def play(self, scenarios: Sequence[Scenario], temperature: float, seed: str) -> list[Try]:
        """Try each scenario once, all at the same time."""
        target = self._engine.registry.resolve(self._model.full_name)
        tries = [Try(ENVIRONMENT.episode(each), Random(f"{seed}/{n}")) for n, each in enumerate(scenarios)]
        for each in tries:
            each.messages += each.episode.messages()
            self._ask(target, each, temperature)
        while self._engine.sampler.busy:
            self._engine.sampler.step()
        return tries

    def train(self, groups: Sequence[Sequence[tuple[Try, float]]], learning_rate: float) -> Mapping[str, float]:
        """One GRPO step on the tries and their rewards."""
        options = TrainOptions(learning_rate=learning_rate, token_weighting="token")
        trajectories = [tuple(trajectory(each, reward) for each, reward in group) for group in groups]
        return finish(self._engine.train(self._model.id, trajectories, options)).metrics

    def _ask(self, target: Target, each: Try, temperature: float) -> None:
        tokenizer = self._engine.tokenizer(target)
        request = SampleRequest(
            tuple(tokenizer.prompt(each.messages, each.tools, exact=each.exact)),
            target.key,
            CONFIG.max_completion_tokens,
            temperature=temperature,
            seed=each.seeds.getrandbits(53),
            stop_ids=frozenset(tokenizer.stop_ids),
        )
        self._engine.submit(target, request, None, partial(self._answered, target, each, temperature))

    def _answered(self, target: Target, each: Try, temperature: float, sample: Sample | Exception) -> None:
        if isinstance(sample, Exception):
            raise sample
        tokenizer = self._engine.tokenizer(target)
        ids = sample.ids[:-1] if sample.ids[-1] in tokenizer.stop_ids else sample.ids
        reply = tokenizer.parse(tokenizer.decode(ids), call_seed=str(len(each.messages)))
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        each.exact[len(each.messages)] = tuple(sample.ids)
        each.logprobs[len(each.messages)] = tuple(sample.logprobs)
        each.messages.append({"role": "assistant", "content": reply.content, "tool_calls": calls or None})
        asyncio.run(_execute(each, calls))
        if len(each.exact) == each.episode.max_turns and not each.over:
            each.episode.end("out_of_turns", "no answer")
            each.over = True
        if not each.over:
            self._ask(target, each, temperature)


async def _execute(each: Try, calls: Sequence[Mapping[str, Any]]) -> None:
    if not calls:
        each.episode.end("malformed", "no tool call")
        each.over = True
    for call in calls:
        try:
            result = await each.episode.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        except ToolError as error:
            each.episode.end("malformed", str(error))
            each.over = True
            return
        if result.final:
            each.over = True
            return
        each.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.content})


def trajectory(each: Try, reward: float) -> Trajectory:
    conversation = Conversation(tuple(each.messages), each.tools, each.exact, each.logprobs)
    return Trajectory((conversation,), reward)


def scored(tries: Sequence[Try]) -> list[tuple[Outcome, float]]:
    """Outcome and judge's score of each."""
    outcomes = [each.episode.outcome() for each in tries]

    async def judge() -> list[float]:
        scores = []
        for number, (each, outcome) in enumerate(zip(tries, outcomes, strict=True)):
            verdict = await JUDGE.judge(each.episode.scenario, [Candidate(str(number), outcome, each.messages)])
            scores.append(verdict.scores[0].value or 0.0)
        return scores

    return list(zip(outcomes, asyncio.run(judge()), strict=True))


def success(agent: Agent, split: Split, temperature: float, samples: int, seed: int) -> float:
    """The share of held-out tries that did the whole job."""
    scenarios = ENVIRONMENT.scenarios(split, CONFIG.evaluation.test_scenarios, seed)
    tries = agent.play([each for each in scenarios for _ in range(samples)], temperature, f"{seed}/{split}")
    return fmean(ENVIRONMENT.success(outcome, score) for outcome, score in scored(tries))


def rewarded_groups(
    agent: Agent, seed: int, iteration: int, config: RunConfig = CONFIG
) -> list[list[tuple[Try, float]]]:
    """What an iteration trains on: its scenarios, each tried several times, with rewards."""
    start = (iteration - 1) * config.groups_per_iteration
    scenarios = ENVIRONMENT.scenarios("train", config.groups_per_iteration, seed, start)
    count = config.rollouts_per_group
    tries = agent.play([each for each in scenarios for _ in range(count)], 1.0, f"{seed}/{iteration}")
    rewarded = [
        (each, sum(ENVIRONMENT.reward(*verdict).values())) for each, verdict in zip(tries, scored(tries), strict=True)
    ]
    return [rewarded[at : at + count] for at in range(0, len(rewarded), count)]


def learn(device: str, seed: int, iterations: int) -> dict[str, Any]:
    """One run's figures: success before and after, mean reward of each iteration, seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        agent = Agent(Path(directory), device)
        before = [success(agent, "test", 1.0, 2, seed), success(agent, "test", 0.0, 1, seed)]
        rewards = []
        for iteration in range(1, iterations + 1):
            groups = rewarded_groups(agent, seed, iteration)
            rewards.append(round(fmean(reward for group in groups for _, reward in group), 3))
            agent.train(groups, CONFIG.learning_rate * min(1.0, iteration / CONFIG.warmup_iterations))
        after = [success(agent, "test", 1.0, 2, seed), success(agent, "test", 0.0, 1, seed)]
    return {
        "device": device,
        "seed": seed,
        "sampled": [round(before[0], 3), round(after[0], 3)],
        "greedy": [round(before[1], 3), round(after[1], 3)],
        "rewards": rewards,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_learning", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=CONFIG.iterations)
    options = parser.parse_args()
    set_cpu_mode()
    for seed in options.seeds:
        print(json.dumps(learn(options.device, seed, options.iterations)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
