"""An API process or worker of `rolling_restart`: the real service around a learn loop that only sleeps."""

import argparse
import asyncio
import signal
from pathlib import Path

import uvicorn

from benchmarks.service.control_plane_service import PacedLoop
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.main import create_app, server_config
from learnloop_service.app.service import open_worker
from learnloop_service.app.settings import Settings, load_settings
from tests.fakes.scripted_learning import ScriptedBackend

_LEARN = PacedLoop(0.05)


async def _work(settings: Settings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_worker(settings, connect=ScriptedBackend().connect, learn=_LEARN):
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
    config = server_config(create_app(settings, connect=ScriptedBackend().connect, learn=_LEARN), settings)
    config.lifespan = "on"
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
