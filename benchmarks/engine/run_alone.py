"""Compare a finished run with its engine alone: `python -m benchmarks.engine.run_alone --data-dir DIR --run RUN`.

The engine alone answers the prompts of the run's last iterations again, in this process: as many conversations at a
time as the run had, in each one reply after another, and nothing between them. So the ratio of both sides' tokens a
second is what HTTP, tokenizer, tools, judges and the database leave of the sampler's speed. Also prints how much of the
run's training phases was not the training step.
"""

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from learnloop_service.app.cli.service_process import own_service
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.__main__ import TINY_BASE, TINY_NAME
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.model_record import Target
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.weights.flash_attention import use_newest

Conversation = list[SampleRequest]
"""The requests of a conversation, turn by turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="of the service, which is stopped")
    parser.add_argument("--run", required=True)
    parser.add_argument("--iterations", type=int, default=3, help="of the run's last ones")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    with own_service(options.data_dir, waiting=lambda _: None, variables={}) as service:
        run = service.run(options.run)
        rows = list(service.iterations(options.run))[-options.iterations :]
        rollouts = [
            [
                service.trajectory(listed["id"])
                for listed in service.trajectories(options.run, iteration=row["iteration"], split="train")
            ]
            for row in rows
        ]
    if options.device == "cpu":
        set_cpu_mode()
        torch.set_num_threads(1)
    use_newest()
    sampler = Sampler(slots=run["request"]["concurrency"])
    engine = Engine(Registry(options.data_dir, {TINY_NAME: TINY_BASE}), sampler, device=options.device)
    model = f"{run['model']['project']}/{run['model']['name']}"
    compared = [
        _compared(engine, engine.registry.resolve(f"{model}@{row['sampled_step']}"), of_iteration, row, run["request"])
        for row, of_iteration in zip(rows, rollouts, strict=True)
    ]
    for comparison in compared:
        print(json.dumps(comparison), flush=True)
    figures = {
        name: round(median(comparison[name] for comparison in compared), 3)
        for name in compared[0]
        if name != "iteration"
    }
    print(json.dumps({"device": _device(options.device), "median": figures}))


def _compared(engine: Engine, target: Target, rollouts: Sequence[Json], row: Json, settings: Json) -> dict[str, float]:
    """Return the figures of an iteration and of the engine alone on its prompts."""
    tokenizer = engine.tokenizer(target)
    conversations = [
        [
            SampleRequest(
                tuple(tokenizer.prompt(rollout["messages"][:number], rollout["tools"])),
                target.key,
                settings["max_completion_tokens"],
                stop_ids=tokenizer.stop_ids,
            )
            for number, message in enumerate(rollout["messages"])
            if message["role"] == "assistant"
        ]
        for rollout in rollouts
    ]
    engine.sample(target, conversations[0][:1])  # loads the weights
    tokens, seconds = _alone(engine, target, conversations, settings["concurrency"])
    timing = row["timing"]
    rollout_s = timing["rollout_s"] + timing["ahead_s"]
    of_run = sum(rollout["completion_tokens"] for rollout in rollouts) / rollout_s  # the timing's are also evaluations'
    step = row["train_metrics"]["seconds"]
    return {
        "iteration": row["iteration"],
        "conversations": len(conversations),
        "prompt_tokens": sum(len(request.prompt) for conversation in conversations for request in conversation),
        "run_rollout_s": rollout_s,
        "run_tokens_per_s": of_run,
        "alone_rollout_s": seconds,
        "alone_tokens_per_s": tokens / seconds,
        "run_of_alone": of_run / (tokens / seconds),
        "train_s": timing["train_s"],
        "step_s": step,
        "not_the_step": 1 - step / timing["train_s"],
    }


def _alone(
    engine: Engine, target: Target, conversations: Sequence[Conversation], concurrency: int
) -> tuple[int, float]:
    """Sample all conversations, and return the number of tokens and the seconds it took."""
    waiting = iter(conversations)
    tokens = 0

    def begin() -> None:
        if conversation := next(waiting, None):
            ask(conversation, 0)

    def ask(conversation: Conversation, turn: int) -> None:
        engine.submit(target, conversation[turn], None, partial(on_sample, conversation, turn))

    def on_sample(conversation: Conversation, turn: int, sample: Sample | Exception) -> None:
        nonlocal tokens
        if isinstance(sample, Exception):
            raise sample
        tokens += len(sample.ids)
        if turn + 1 < len(conversation):
            ask(conversation, turn + 1)
        else:
            begin()

    engine.sampler.release_idle()
    started = time.perf_counter()
    for _ in range(concurrency):
        begin()
    while engine.sampler.busy:
        engine.sampler.step()
    return tokens, time.perf_counter() - started


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


if __name__ == "__main__":
    main()
