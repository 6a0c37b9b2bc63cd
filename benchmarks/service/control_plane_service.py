"""The service process of benchmarks/service/control_plane.py; it drives runs with a scripted learn loop.

Each iteration keeps its rollouts in the journal like a real one, and sleeps where a real one computes.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from learnloop_service.app.logs import configure_logs
from learnloop_service.app.main import create_app, server_config
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.base import Environment
from learnloop_service.judges.base import Judge
from learnloop_service.training.backends.base import Policy
from learnloop_service.training.garbage import look_seldom_at_everything
from learnloop_service.training.journal import Journal
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress, IterationResult, Resume, RunConfig
from tests.fakes.scripted_learning import ScriptedBackend, scripted_result

ROLLOUTS = 64
"""Rollouts of an iteration."""
TASKS = "/benchmark/tasks"
"""Route that returns the number of tasks on the service's event loop."""
QUICK_ITERATIONS = 4
"""Iterations without pauses at the start of a run, so that imports and caches are warm before the measurement."""


@dataclass(frozen=True)
class PacedLoop:
    """A learn loop that computes nothing and pauses before each rollout that the journal does not have."""

    pause_s: float

    async def __call__(
        self,
        config: RunConfig,
        environment: Environment,
        judge: Judge,
        policy: Policy,
        *,
        progress: Callable[[IterationProgress], None],
        journal: Journal,
        resume: Resume | None,
        **_: object,
    ) -> AsyncGenerator[IterationResult, None]:
        for iteration in range(resume.iteration if resume else 0, config.iterations + 1):
            entries = await journal.kept(iteration)
            for number in range(ROLLOUTS):
                if (entry := f"rollout/train/{number}") not in entries:
                    await asyncio.sleep(self.pause_s if iteration >= QUICK_ITERATIONS else 0)
                    journal.keep_soon(iteration, entry, json.dumps({"tokens": [*range(500)]}))
                progress(IterationProgress(iteration, Phase.ROLLOUT, number + 1, ROLLOUTS))
            await journal.keep(iteration, "judge/train", "[]")
            yield scripted_result(policy, iteration, iteration, config.iterations, "the answer")


async def _tasks() -> int:
    return len(asyncio.all_tasks())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--runs", type=int, required=True, help="driven simultaneously")
    parser.add_argument("--pause", type=float, required=True, help="seconds before each rollout")
    options = parser.parse_args()
    configure_logs("warning", "json")
    sys.setswitchinterval(0.001)  # like learnloop_service.app.server, as is the next line
    look_seldom_at_everything()
    settings = load_settings(
        _env_file=None,
        data_dir=options.data_dir,
        database_url=options.database,
        port=options.port,
        max_concurrent_runs=options.runs,
        rate_per_s=0,
    )
    app = create_app(settings, connect=ScriptedBackend().connect, learn=PacedLoop(options.pause))
    app.add_api_route(TASKS, _tasks)
    config = server_config(app, settings)
    config.lifespan = "on"
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
