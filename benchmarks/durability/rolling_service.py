"""An API process or worker of `rolling_restart`: the real service around a learn loop that only sleeps."""

import argparse
import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import uvicorn

from app.logs import configure_logs
from app.main import create_app, server_config
from app.service import open_worker
from app.settings import Settings, load_settings
from environment.base import Environment
from judges.base import Judge
from tests.fakes.scripted_learning import ScriptedBackend, scripted_result
from training.backends.base import Policy
from training.phases import Phase
from training.types import IterationResult, Progress, RunConfig

_ROLLOUTS = 16
_ROLLOUT_S = 0.05


async def learn(
    config: RunConfig, environment: Environment, judge: Judge, policy: Policy, **given: Any
) -> AsyncGenerator[IterationResult, None]:
    """Sleep for each rollout, and skip those in the journal as the real learn loop does."""
    resume, journal = given["resume"], given["journal"]
    for iteration in range(resume.iteration if resume else 0, config.iterations + 1):
        kept = await journal.kept(iteration)
        for number in range(_ROLLOUTS):
            if (entry := f"rollout/train/{number}") not in kept:
                await asyncio.sleep(_ROLLOUT_S)
                journal.keep_soon(iteration, entry, json.dumps({"tokens": [*range(200)]}))
            given["progress"](Progress(iteration, Phase.ROLLOUT, number + 1, _ROLLOUTS))
        yield scripted_result(policy, iteration, iteration, config.iterations, "the answer")


async def _work(settings: Settings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_worker(settings, connect=ScriptedBackend().connect, learn=learn):
        (settings.data_dir / "up").touch()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("api", "worker"))
    parser.add_argument("--database", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    configure_logs("info", "json")
    settings = load_settings(
        _env_file=None,
        data_dir=options.data_dir,
        database_url=options.database,
        # never contacted (the backend is scripted); a common engine lets both workers drive the same runs
        engine_url="http://127.0.0.1:9",
        port=options.port,
        allowed_private_hosts="127.0.0.0/8",  # allows the webhook URLs that the write requests set
        max_concurrent_runs=4 if options.role == "worker" else 0,
        lease_s=30,
        rate_per_s=0,
    )
    if options.role == "worker":
        asyncio.run(_work(settings))
        return
    config = server_config(create_app(settings, connect=ScriptedBackend().connect, learn=learn), settings)
    config.lifespan = "on"
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
