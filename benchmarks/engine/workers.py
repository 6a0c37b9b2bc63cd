"""Seconds of an iteration's parts with one and with two workers: `python -m benchmarks.engine.workers`.

Uses the tiny base model on a CPU. On GPUs (`--device cuda --models 1.7B,14B`) it uses the shapes and the work of
`benchmarks.engine.gpu`: 12 groups of 4 rollouts of 4 turns, then one GRPO step. Calls the engine's front with real
worker processes, without HTTP, tokenizing and environment. Weights and tokens are random and lengths are forced.

`--workers 2,1+1 --staleness 0,1 --judge 5` compares the asynchronous pipeline (docs/staleness.md) with the exact loop:
with two workers that do everything, and with one that samples and one that trains, each group judged for 5 s.

`--adapters 4` measures instead the benefit of sampling several adapters of a base concurrently: tokens/s of 12
conversations of each, all together and one adapter after the other. (On a CPU they take turns, token by token.)
"""

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, harmonic_mean, median
from typing import Any

import numpy as np
import structlog

from learnloop_service.training.engine.cpu_mode import set_cpu_mode


@dataclass(frozen=True, slots=True)
class Work:
    """An iteration's rollouts; all but the first three numbers are numbers of tokens."""

    groups: int
    rollouts: int
    turns: int
    shared: int
    """Prompt tokens shared by all groups."""
    separate: int
    """Prompt tokens of one group only."""
    reply: int
    result: int
    """Tokens of a tool result between two turns."""


ART_E = Work(12, 4, 4, 900, 100, 60, 500)
SMALL = Work(6, 4, 3, 200, 50, 40, 80)
ADAPTER_CONVERSATIONS = 12
TOKEN_IDS = 300
"""Number of token ids that prompts are drawn from."""


def make_model(name: str, directory: Path) -> None:
    """Write a random model of that shape, and a tokenizer with a word for each of its token ids."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from benchmarks.engine.gpu import MODELS

    config = MODELS[name]()
    with torch.device("cuda"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    words = {f"t{number}": number for number in range(config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(models.WordLevel(words, "t0")), eos_token="t1"
    )
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(directory)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The judged rollouts of an iteration."""

    groups: Sequence[Any]
    seconds: float
    """Time that sampling took."""


class Iterations:
    """Iterations of one model on a pool of workers; `roles` says whether each worker samples and whether it trains."""

    def __init__(
        self, directory: Path, base: Path, work: Work, roles: Sequence[tuple[bool, bool]], device: str, judge_s: float
    ) -> None:
        from learnloop_service.training.engine.registry.registry import Registry
        from learnloop_service.training.engine.text.tokenizers import Tokenizers
        from learnloop_service.training.engine.workers.link import WorkerSpec
        from learnloop_service.training.engine.workers.local import LocalWorkers
        from learnloop_service.training.engine.workers.pool import WorkerPool

        bases = {"base": base}
        self._work = work
        self._judge_s = judge_s
        self._registry = Registry(directory, bases)
        specs = [
            WorkerSpec(number, samples, trains, device, directory, bases, (), 64, None, None, 1, 1)
            for number, (samples, trains) in enumerate(roles)
        ]
        self.pool = WorkerPool(self._registry, Tokenizers(), specs, LocalWorkers())
        self._model = self._registry.create(project="benchmark", name="policy", base_model="base").id

    def add_adapters(self, count: int) -> list[Any]:
        """Create adapters of the base for sampling and return their targets."""
        from learnloop_service.training.tuning import Tuning

        names = [f"adapter{number}" for number in range(count)]
        for name in names:
            self._registry.create(project="benchmark", name=name, base_model="base", tuning=Tuning("lora"))
        return [self._registry.resolve(f"benchmark/{name}") for name in names]

    async def sampled(self, targets: Sequence[Any], seed: int) -> float:
        """Sample one group of conversations per adapter, all concurrently; return tokens per second."""
        work, draw = self._work, np.random.default_rng(seed)
        prompts = draw.integers(2, TOKEN_IDS, (len(targets), work.shared + work.separate)).tolist()
        started = time.perf_counter()
        await asyncio.gather(
            *(
                self._rollout(target, prompt, seed, ADAPTER_CONVERSATIONS * number + member)
                for number, (target, prompt) in enumerate(zip(targets, prompts, strict=True))
                for member in range(ADAPTER_CONVERSATIONS)
            )
        )
        return len(targets) * ADAPTER_CONVERSATIONS * work.turns * work.reply / (time.perf_counter() - started)

    async def ready(self) -> None:
        """Wait until all workers are up."""
        while not all(worker["up"] for worker in self.pool.details["workers"]):
            await asyncio.sleep(0.1)

    async def measured(self, count: int, staleness: int) -> dict[str, float]:
        """Return mean seconds of an iteration and of its parts, after an uncounted one.

        A part counts for as long as the iteration waited for it. Rollouts run `staleness` iterations ahead throughout.
        """
        ahead = deque(asyncio.create_task(self._rolled_out(seed)) for seed in range(staleness + 1))
        measurements = []
        for seed in range(staleness + 1, staleness + count + 2):
            started = time.perf_counter()
            rollouts = await ahead.popleft()
            judged = time.perf_counter()
            stepped = await self._train(rollouts.groups)
            ended = time.perf_counter()
            ahead.append(asyncio.create_task(self._rolled_out(seed)))
            measurements.append(
                (ended - started, judged - started, stepped - judged, ended - stepped, rollouts.seconds)
            )
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
        iteration, waited, train, checkpoint, rollout = map(fmean, zip(*measurements[1:], strict=True))
        work, rollouts_made = self._work, self._work.groups * self._work.rollouts
        whole = work.shared + work.separate + work.turns * work.reply + (work.turns - 1) * work.result
        return {
            "iteration_s": iteration,
            "rollouts_and_judge_s": waited,
            "train_s": train,
            "checkpoint_s": checkpoint,
            "sampled_tokens_per_s": rollouts_made * work.turns * work.reply / rollout,
            "trained_tokens_per_s": rollouts_made * whole / train,
        }

    async def _rolled_out(self, seed: int) -> Rollouts:
        """Make an iteration's rollouts with the newest policy."""
        work, target = self._work, self._registry.resolve("benchmark/policy")
        draw = np.random.default_rng(seed)
        shared = draw.integers(2, TOKEN_IDS, work.shared).tolist()
        prompts = [shared + draw.integers(2, TOKEN_IDS, work.separate).tolist() for _ in range(work.groups)]
        started = time.perf_counter()
        sampled: list[float] = []

        async def group(number: int) -> tuple[Any, ...]:
            members = range(number * work.rollouts, (number + 1) * work.rollouts)
            trajectories = await asyncio.gather(
                *(self._rollout(target, prompts[number], seed, member) for member in members)
            )
            sampled.append(time.perf_counter() - started)
            await asyncio.sleep(self._judge_s)
            return tuple(trajectories)

        groups = await asyncio.gather(*map(group, range(work.groups)))
        return Rollouts(groups, max(sampled))

    async def _train(self, groups: Sequence[Any]) -> float:
        """Train until the checkpoint is written; return the time at which the step had been taken."""
        from learnloop_service.training.engine.computing import PolicyStep, TrainingTask
        from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
        from learnloop_service.training.engine.trainer.grpo_step import StepProgress

        end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        stepped: list[float] = []

        def progressed(progress: StepProgress) -> None:
            if progress.metrics:
                stepped.append(time.perf_counter())

        steps = PolicyStep(self._model, groups, TrainOptions(learning_rate=1e-5))
        self.pool.train(
            TrainingTask(
                steps,
                on_start=lambda: None,
                on_progress=progressed,
                on_end=end.set_result,
            )
        )
        if isinstance(outcome := await end, Exception):
            raise outcome
        return stepped[0]

    async def _rollout(self, target: Any, prompt: list[int], seed: int, number: int) -> Any:
        from learnloop_service.training.call_sequences import TokenSequence
        from learnloop_service.training.engine.sampling.requests import SampleRequest
        from learnloop_service.training.engine.trainer.trajectories import Conversation, TrainingTrajectory

        work = self._work
        ids = list(prompt)
        trained: list[int] = []
        logprobs: list[float] = []
        for turn in range(work.turns):
            request = SampleRequest(tuple(ids), target.key, work.reply, seed=seed * 1000 + number * 10 + turn)
            sample = await self.pool.sample(target, request)
            trained += range(len(ids), len(ids) + work.reply)
            ids, logprobs = ids + sample.ids, logprobs + sample.logprobs
            if turn + 1 < work.turns:
                draw = np.random.default_rng((seed, number, turn))
                ids += draw.integers(2, TOKEN_IDS, work.result).tolist()
        tokens = TokenSequence(tuple(ids), tuple(trained), tuple(logprobs))
        messages = ({"role": "user", "content": ""}, {"role": "assistant", "content": ""})
        conversation = Conversation(messages, None, {1: (0,)}, {1: (0.0,)}, frozenset({1}), tokens)
        return TrainingTrajectory((conversation,), float(number % work.rollouts))


async def measure(
    base: Path, work: Work, workers: str, device: str, iterations: int, stalenesses: Sequence[int], judge_s: float
) -> dict[int, dict[str, float]]:
    """Return the figures of each staleness, with the seconds until all workers were up."""
    by_staleness = {}
    with tempfile.TemporaryDirectory(dir=base.parent) as directory:
        started = time.perf_counter()
        running = Iterations(Path(directory), base, work, roles(workers), device, judge_s)
        running.pool.start()
        try:
            await running.ready()
            up_s = time.perf_counter() - started
            for staleness in stalenesses:
                by_staleness[staleness] = {**await running.measured(iterations, staleness), "up_s": up_s}
        finally:
            await running.pool.close()
    return by_staleness


async def measure_adapters(base: Path, work: Work, device: str, iterations: int, count: int) -> dict[str, float]:
    """Return sampled tokens per second with one worker, including prefill; medians of `iterations`."""
    with tempfile.TemporaryDirectory(dir=base.parent) as directory:
        running = Iterations(Path(directory), base, work, roles("1"), device, 0.0)
        targets = running.add_adapters(count)
        running.pool.start()
        try:
            await running.ready()
            together, turns = [], []
            for seed in range(iterations + 1):
                together.append(await running.sampled(targets, 2 * seed))
                turns.append(harmonic_mean([await running.sampled([target], 2 * seed + 1) for target in targets]))
        finally:
            await running.pool.close()
    rates = {"together_tokens_per_s": median(together[1:]), "one_after_the_other_tokens_per_s": median(turns[1:])}
    return {**rates, "speed_up": rates["together_tokens_per_s"] / rates["one_after_the_other_tokens_per_s"]}


def roles(workers: str) -> list[tuple[bool, bool]]:
    """Parse the workers' roles as (samples, trains): in `2` both do everything, in `1+1` one samples and one trains."""
    samplers, apart, trainers = workers.partition("+")
    if not apart:
        return [(True, True)] * int(workers)
    return [(True, False)] * int(samplers) + [(False, True)] * int(trainers)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.workers", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", default="tiny", help="tiny, or shapes of benchmarks.engine.gpu, with commas")
    parser.add_argument(
        "--workers", default="1,2", help="numbers of workers, with commas; 1+1: one that samples and one that trains"
    )
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--staleness", default="0", help="steps that rollouts may be old, with commas")
    parser.add_argument("--judge", type=float, default=0.0, metavar="SECONDS", help="what judging a group takes")
    parser.add_argument("--adapters", type=int, default=0, help="only sample this number of adapters")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where models are written")
    parser.add_argument("--make", nargs=2, metavar=("MODEL", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_cpu_mode()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if options.device == "cuda":
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as in the engine
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.make:
        make_model(options.make[0], Path(options.make[1]))
        return 0
    from learnloop_service.training.engine.__main__ import TINY_BASE

    for name in options.models.split(","):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            base = Path(directory) / "base"
            if name == "tiny":
                base.symlink_to(TINY_BASE)
            else:  # a separate process gives the GPU's memory back
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.engine.workers", "--make", name, str(base)], check=True
                )
            alone: dict[int, float] = {}
            work = SMALL if options.device == "cpu" else ART_E
            if options.adapters:
                adapters = measure_adapters(base, work, options.device, options.iterations, options.adapters)
                figures = {key: round(value, 2) for key, value in asyncio.run(adapters).items()}
                print(f"{name:5} {options.adapters} adapters {json.dumps(figures)}", flush=True)
                continue
            stalenesses = [int(staleness_text) for staleness_text in options.staleness.split(",")]
            for workers in options.workers.split(","):
                measuring = measure(base, work, workers, options.device, options.iterations, stalenesses, options.judge)
                for staleness, measured in asyncio.run(measuring).items():
                    if workers == "1":
                        alone[staleness] = measured["iteration_s"]
                    if staleness in alone:
                        measured["speed_up"] = alone[staleness] / measured["iteration_s"]
                    figures = {key: round(value, 4) for key, value in measured.items()}
                    print(f"{name:5} {workers} workers, staleness {staleness} {json.dumps(figures)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
