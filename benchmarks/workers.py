"""`python -m benchmarks.workers`: what a second worker brings: seconds of an iteration's parts with one and with two.

On a CPU the tiny base model, on GPUs (`--device cuda --models 1.7B,14B`) the shapes and the work of `benchmarks.gpu`:
12 groups of 4 rollouts of 4 turns, then one GRPO step. Through the front as the engine has it, with real worker
processes; without HTTP, tokenizing and an environment. Weights and tokens are random and lengths forced.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from training.engine.cpu_mode import set_cpu_mode
from training.engine.model_classes import import_model_classes


@dataclass(frozen=True, slots=True)
class Work:
    """An iteration's rollouts; numbers of tokens but for the first three."""

    groups: int
    rollouts: int
    turns: int
    shared: int
    """Of all prompts."""
    own: int
    """Of a group's prompt."""
    reply: int
    result: int
    """Of a tool, between two turns."""


ART_E = Work(12, 4, 4, 900, 100, 60, 500)
SMALL = Work(6, 4, 3, 200, 50, 40, 80)
TOKEN_IDS = 300
"""Prompts are drawn from so many."""


def make_model(name: str, directory: Path) -> None:
    """A random model of that shape, and a tokenizer that has a word for each of its token ids."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from benchmarks.gpu import MODELS

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


class Iterations:
    """Iterations of one model on a pool of workers."""

    def __init__(self, directory: Path, base: Path, work: Work, workers: int, device: str) -> None:
        from training.engine.registry.registry import Registry
        from training.engine.tokenizers import Tokenizers
        from training.engine.workers.link import WorkerSpec
        from training.engine.workers.local import LocalWorkers
        from training.engine.workers.pool import WorkerPool

        bases = {"base": base}
        self._work = work
        self._registry = Registry(directory, bases)
        specs = [
            WorkerSpec(number, True, True, device, directory, bases, (), 64, None, None, 1, 1)
            for number in range(workers)
        ]
        self.pool = WorkerPool(self._registry, Tokenizers(), specs, LocalWorkers())
        self._model = self._registry.create(project="benchmark", name="policy", base_model="base").id

    async def ready(self) -> None:
        """All workers are up and have the weights."""
        while not all(each["up"] for each in self.pool.details["workers"]):
            await asyncio.sleep(0.1)

    async def iteration(self, seed: int) -> dict[str, float]:
        """Seconds of its parts."""
        from training.engine.computing import PolicyStep, TrainingTask
        from training.engine.trainer.grpo_loss import TrainOptions
        from training.engine.trainer.grpo_step import Progress

        work = self._work
        draw = np.random.default_rng(seed)
        shared = draw.integers(2, TOKEN_IDS, work.shared).tolist()
        prompts = [shared + draw.integers(2, TOKEN_IDS, work.own).tolist() for _ in range(work.groups)]
        started = time.perf_counter()
        found = await asyncio.gather(
            *(self._rollout(prompts[n // work.rollouts], seed, n) for n in range(work.groups * work.rollouts))
        )
        sampled = time.perf_counter()
        groups = [tuple(found[n : n + work.rollouts]) for n in range(0, len(found), work.rollouts)]
        loop = asyncio.get_running_loop()
        end: asyncio.Future[Any] = loop.create_future()
        stepped: list[float] = []

        def progressed(progress: Progress) -> None:
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
        ended = time.perf_counter()
        replies = len(found) * work.turns * work.reply
        whole = work.shared + work.own + work.turns * work.reply + (work.turns - 1) * work.result
        return {
            "iteration_s": ended - started,
            "rollout_s": sampled - started,
            "train_s": stepped[0] - sampled,
            "checkpoint_s": ended - stepped[0],
            "sampled_tokens_per_s": replies / (sampled - started),
            "trained_tokens_per_s": len(found) * whole / (stepped[0] - sampled),
        }

    async def _rollout(self, prompt: list[int], seed: int, number: int) -> Any:
        from training.call_sequences import TokenSequence
        from training.engine.sampling.requests import SampleRequest
        from training.engine.trainer.trajectories import Conversation, Trajectory

        work = self._work
        target = self._registry.resolve("benchmark/policy")
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
        said = ({"role": "user", "content": ""}, {"role": "assistant", "content": ""})
        conversation = Conversation(said, None, {1: (0,)}, {1: (0.0,)}, frozenset({1}), tokens)
        return Trajectory((conversation,), float(number % work.rollouts))


async def measure(base: Path, work: Work, workers: int, device: str, iterations: int) -> dict[str, float]:
    """The median iteration, after one that is not counted; and the seconds until all workers were up."""
    with tempfile.TemporaryDirectory(dir=base.parent) as directory:
        started = time.perf_counter()
        running = Iterations(Path(directory), base, work, workers, device)
        running.pool.start()
        try:
            await running.ready()
            up_s = time.perf_counter() - started
            await running.iteration(0)
            found = [await running.iteration(seed) for seed in range(1, iterations + 1)]
        finally:
            await running.pool.close()
    return {**sorted(found, key=lambda each: each["iteration_s"])[len(found) // 2], "up_s": up_s}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", default="tiny", help="tiny, or shapes of benchmarks.gpu, with commas")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, with commas")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where models are written")
    parser.add_argument("--make", nargs=2, metavar=("MODEL", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_cpu_mode()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import_model_classes()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.make:
        make_model(options.make[0], Path(options.make[1]))
        return 0
    from training.engine.__main__ import TINY_BASE

    for name in options.models.split(","):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            base = Path(directory) / "base"
            if name == "tiny":
                base.symlink_to(TINY_BASE)
            else:  # in a process of its own, which gives the GPU's memory back
                subprocess.run([sys.executable, "-m", "benchmarks.workers", "--make", name, str(base)], check=True)
            alone = 0.0
            for workers in map(int, options.workers.split(",")):
                work = SMALL if options.device == "cpu" else ART_E
                found = asyncio.run(measure(base, work, workers, options.device, options.iterations))
                alone = found["iteration_s"] if workers == 1 else alone
                if alone:
                    found["speed_up"] = alone / found["iteration_s"]
                figures = {key: round(value, 4) for key, value in found.items()}
                print(f"{name:5} {workers} workers {json.dumps(figures)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
