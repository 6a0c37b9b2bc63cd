"""Compare the seconds of a GRPO iteration and a rollout: our loop and TRL's GRPOTrainer. Needs the extra `bench`.

    python -m benchmarks.engine.trl_rollouts [--rounds 3] [--threads 1 [--workers 1]]

Both train the included base model on the same questions about the same synthetic inboxes, with the same prompts, tools,
reward, numbers of rollouts and turns, learning rate, and number of threads. They alternate by iteration after an
uncounted one; figures are medians. Our side is the complete loop of a run: it calls the engine process over HTTP. As in
the service, the engine trains with all threads and samples with one, or with one in each of several processes
(`--workers`). `trl_side.py` describes how TRL is used.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks import processes
from benchmarks.engine import trl_side
from benchmarks.engine.trl_side import ENVIRONMENT, JUDGE, Iteration
from learnloop_service.training.backends import embedded
from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.engine.__main__ import TINY_NAME
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.rollout.rollout import total
from learnloop_service.training.types import EvaluationConfig, IterationResult, RunConfig

GOAL = 4.0
"""Required ratio of TRL's seconds per rollout to ours."""


def run_config(iterations: int, seed: int) -> RunConfig:
    """Return our defaults with minimal evaluation, whose time is not counted."""
    return RunConfig(
        iterations=iterations,
        seed=seed,
        max_turns=ENVIRONMENT.default_max_turns,
        evaluation=EvaluationConfig(every=iterations, scenarios=1, samples=1, test_scenarios=1),
    )


async def our_iterations(base_url: str, config: RunConfig) -> AsyncGenerator[Iteration, None]:
    """Run our loop and yield each iteration."""
    backend = await embedded.connect(base_url, "none")
    try:
        policy = await backend.register(ModelSpec("benchmark", "agent", TINY_NAME))
        async with contextlib.aclosing(learn_loop(config, ENVIRONMENT, JUDGE, policy)) as results:
            async for result in results:
                if result.iteration:
                    yield _ours(result)
    finally:
        await backend.close()


def _ours(result: IterationResult) -> Iteration:
    rollouts = [scored.rollout for group in result.groups for scored in group.rollouts]
    if result.failed_rollouts or result.rewards.mean is None:
        raise RuntimeError(f"{result.failed_rollouts} rollouts failed: {[rollout.error for rollout in rollouts]}")
    return Iteration(
        seconds=result.timing.total_s - result.timing.evaluate_s,
        rollout_s=result.timing.rollout_s,
        tokens=int(total(rollouts, "completion_tokens")),
        turns=total(rollouts, "turns") / len(rollouts),
        reward=result.rewards.mean,
    )


async def compare(
    rounds: int, micro_batch: int, seed: int, threads: int, workers: int
) -> tuple[list[Iteration], list[Iteration]]:
    """Alternate iterations of both sides; return them without the first, which warms up."""
    config = run_config(rounds + 1, seed)
    spawn = multiprocessing.get_context("spawn")
    turn, theirs_turn = spawn.Pipe()
    child = spawn.Process(target=trl_side.run, args=(theirs_turn, config, micro_batch, threads), daemon=True)
    child.start()
    theirs_turn.close()
    ours: list[Iteration] = []
    theirs: list[Iteration] = []
    flags = ["--threads", "1", "--train-threads", str(threads)]
    if workers > 1:
        flags += ["--workers", str(workers), "--trainers", "1"]
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-") as directory,
        processes.engine(Path(directory), *flags) as base_url,
    ):
        async with contextlib.aclosing(our_iterations(base_url, config)) as iterations:
            async for iteration in iterations:
                ours.append(iteration)
                turn.send(None)
                theirs.append(turn.recv())
    child.join()
    return ours[1:], theirs[1:]


def figures(iterations: Sequence[Iteration], rollouts: int) -> dict[str, float]:
    """Return medians over the iterations."""

    def median(value: Callable[[Iteration], float]) -> float:
        return round(statistics.median(map(value, iterations)), 4)

    return {
        "seconds_per_iteration": median(lambda iteration: iteration.seconds),
        "seconds_per_rollout": median(lambda iteration: iteration.seconds / rollouts),
        "rollout_phase_s": median(lambda iteration: iteration.rollout_s),
        "train_phase_s": median(lambda iteration: iteration.seconds - iteration.rollout_s),
        "sampled_tokens_per_s": median(lambda iteration: iteration.tokens / iteration.rollout_s),
        "tokens_per_rollout": median(lambda iteration: iteration.tokens / rollouts),
        "turns_per_rollout": median(lambda iteration: iteration.turns),
        "reward": median(lambda iteration: iteration.reward),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="iterations that count, of each side")
    parser.add_argument("--trl-micro-batch", type=int, default=16, help="trajectories of one pass of TRL's training")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side")
    parser.add_argument("--workers", type=int, default=1, help="processes of our engine that sample")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    machine = processes.machine()
    ours, theirs = asyncio.run(
        compare(options.rounds, options.trl_micro_batch, options.seed, options.threads, options.workers)
    )
    config = run_config(1, 0)
    rollouts = config.groups_per_iteration * config.rollouts_per_group
    ratios = [other.seconds / our.seconds for our, other in zip(ours, theirs, strict=True)]
    result = {
        "trl_version": version("trl"),
        "rollouts_per_iteration": rollouts,
        "rounds": options.rounds,
        "trl_micro_batch": options.trl_micro_batch,
        "threads": options.threads,
        "workers": options.workers,
        "learnloop": figures(ours, rollouts),
        "trl": figures(theirs, rollouts),
        "times_faster": round(statistics.median(ratios), 2),
        "times_faster_by_round": [round(ratio, 2) for ratio in ratios],
        "goal": GOAL,
        "machine": machine,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
