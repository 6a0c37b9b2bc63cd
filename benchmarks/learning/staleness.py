"""Measure what the tiny email agent learns from stale rollouts: `python -m benchmarks.learning.staleness`.

This is the demo's loop without service, database or HTTP (like `benchmarks.learning.engine_learning`), with the lag
that a run has with `"pipeline": {"max_staleness": n}` (`training/pipeline.py`). The lag is fixed, so that the result
does not depend on concurrency, and here everything runs sequentially. The same seed asks the same questions before and
after at every staleness.

    python -m benchmarks.learning.staleness --seeds 0 1 2 3 4 --staleness 0 1 2 4 --processes 16 --device cuda
    python -m benchmarks.learning.staleness --staleness 4 --max-ratio 2 5 --level token sequence

`--wall 2` measures time instead: a real engine and the learn loop with a judge that takes two seconds, with and without
staleness; on two GPUs with `--device cuda --engine '--samplers 1 --trainers 1'`.
"""

import argparse
import asyncio
import json
import multiprocessing
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from benchmarks.learning.engine_learning import CONFIG, Agent, evaluated, rewarded_groups
from benchmarks.processes import engine
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.base import Candidate, Judgement
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.loop.rollout_schedule import sampled_after
from learnloop_service.training.types import EvaluationConfig, PipelineConfig

_SHOWN = {"kl_div": "kl", "clipped_share": "clipped", "step_share": "step_share"}


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    staleness: int
    max_ratio: float
    level: str
    seed: int
    device: str
    iterations: int

    @property
    def setting(self) -> tuple[int, float, str]:
        """The setting that runs with different seeds share."""
        return self.staleness, self.max_ratio, self.level


def learn(case: Case) -> dict[str, Any]:
    """Return one run's figures: success before and after, and metrics of each iteration.

    The metrics are mean reward, distance from the sampling policy to the trained one (Schulman's k3, nats per token),
    share
    of clipped tokens, and share of the step that was taken.
    """
    set_cpu_mode()
    torch.set_num_threads(1)
    started, seed = time.perf_counter(), case.seed
    config = replace(CONFIG, pipeline=PipelineConfig(case.staleness))
    figures: dict[str, list[float]] = {name: [] for name in ("rewards", *_SHOWN.values())}
    with tempfile.TemporaryDirectory() as directory:
        agent = Agent(Path(directory), case.device)
        before = evaluated(agent, seed, [], "before")
        steps = [0]
        for iteration in range(1, case.iterations + 1):
            groups = rewarded_groups(agent, seed, iteration, step=steps[sampled_after(config, iteration)])
            figures["rewards"].append(fmean(reward for group in groups for _, reward in group))
            learning_rate = CONFIG.learning_rate * min(1.0, iteration / CONFIG.warmup_iterations)
            metrics = agent.train(
                groups,
                learning_rate,
                epsilon_high=case.max_ratio - 1,
                importance_sampling_level=case.level,
            )
            for name, figure_name in _SHOWN.items():
                figures[figure_name].append(metrics.get(name, 0.0))
            steps.append(steps[-1] + bool(metrics))
        after = evaluated(agent, seed, [], "after")
    return {
        **asdict(case),
        "sampled": [before[0], after[0]],
        "greedy": [before[1], after[1]],
        "seconds": round(time.perf_counter() - started, 1),
        **{name: [round(value, 4) for value in values] for name, values in figures.items()},
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per setting: held-out success before and after, mean and standard deviation over its seeds."""
    rows = []
    for setting in sorted({(run["staleness"], run["max_ratio"], run["level"]) for run in runs}):
        of_setting = [run for run in runs if (run["staleness"], run["max_ratio"], run["level"]) == setting]
        row: dict[str, Any] = dict(zip(("staleness", "max_ratio", "level"), setting, strict=True))
        row["seeds"] = len(of_setting)
        for mode in ("sampled", "greedy"):
            before, after = zip(*(run[mode] for run in of_setting), strict=True)
            rises = [late - early for early, late in zip(before, after, strict=True)]
            row[mode] = f"{fmean(before):.2f} -> {fmean(after):.2f} +- {_spread(after):.2f}"
            row[f"{mode}_rise"] = f"{fmean(rises):+.2f} +- {_spread(rises):.2f}"
        for name in ("kl", "clipped", "step_share"):
            row[name] = round(fmean(value for run in of_setting for value in run[name]), 4)
        rows.append(row)
    return rows


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def curves(cases: Sequence[Case], processes: int) -> None:
    """Run all cases, `processes` at a time; print the figures of each as it ends, then the summary."""
    runs = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(learn, case) for case in cases]):
            runs.append(future.result())
            print(json.dumps(runs[-1]), flush=True)
    for row in summary(runs):
        print(json.dumps(row), flush=True)


class SlowJudge(ReferenceJudge):
    """A judge that takes as long for each group as a language model."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Return the reference judge's verdicts after a delay."""
        await asyncio.sleep(self._seconds)
        return await super().judge(scenario, candidates)


async def timed(url: str, staleness: int, judge_s: float, iterations: int, seed: int) -> dict[str, Any]:
    """Return how long a run takes, and how long its iterations waited for each phase."""
    from learnloop_service.training.backends.base import ModelSpec
    from learnloop_service.training.backends.embedded import connect
    from learnloop_service.training.loop.learn_loop import learn_loop

    config = replace(
        CONFIG,
        iterations=iterations,
        seed=seed,
        evaluation=EvaluationConfig(every=iterations, scenarios=0, test_scenarios=0),
        pipeline=PipelineConfig(staleness),
    )
    backend = await connect(url, "none")
    try:
        policy = await backend.register(ModelSpec("benchmark", f"stale-{staleness}-{seed}", "learnloop/tiny"))
        loop = learn_loop(config, SyntheticEmailSearch(), SlowJudge(judge_s), policy)
        async with aclosing(loop):
            await anext(loop)
            started = time.perf_counter()
            results = [result async for result in loop]
    finally:
        await backend.close()
    waited = {
        name: sum(getattr(iteration.timing, name) for iteration in results)
        for name in ("rollout_s", "judge_s", "train_s")
    }
    return {
        "staleness": staleness,
        "judge_s": judge_s,
        "iterations": iterations,
        "seconds": round(time.perf_counter() - started, 1),
        "waited": {name: round(seconds, 1) for name, seconds in waited.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning.staleness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--max-ratio", type=float, nargs="+", default=[5.0], help="where importance weights are cut; ART's default is 5"
    )
    parser.add_argument("--level", nargs="+", default=["token"], help="levels of importance sampling")
    parser.add_argument("--iterations", type=int, default=CONFIG.iterations)
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time")
    parser.add_argument("--wall", type=float, metavar="SECONDS", help="measure time, with a judge that takes so long")
    parser.add_argument("--engine", type=shlex.split, default=[], metavar="FLAGS", help="further flags of its engine")
    options = parser.parse_args()
    if options.wall is not None:
        with (
            tempfile.TemporaryDirectory() as directory,
            engine(Path(directory), "--device", options.device, *options.engine) as url,
        ):
            for seed, staleness in product(options.seeds, options.staleness):
                print(
                    json.dumps(asyncio.run(timed(url, staleness, options.wall, options.iterations, seed))), flush=True
                )
        return 0
    # The stalest first, because they take longest.
    settings = product(options.seeds, sorted(options.staleness, reverse=True), options.max_ratio, options.level)
    cases = [
        Case(staleness, max_ratio, level, seed, options.device, options.iterations)
        for seed, staleness, max_ratio, level in settings
    ]
    curves(cases, options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
