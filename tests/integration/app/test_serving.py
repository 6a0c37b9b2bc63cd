"""The service as a process of its own: health, how it ends, and what it says when it cannot start."""

import asyncio
import json
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from learnloop_service.app.processes.data_directory import DataDirectory
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.frozen_server import lives
from tests.integration.app.served import served, settings_for
from tests.integration.app.served_processes import NO_ENGINE, process_environment, service_process


def _gone(processes: list[psutil.Process]) -> bool:
    return not any(map(lives, processes))


@pytest.mark.long
async def test_nothing_outlives_the_service_however_it_ends_and_it_starts_again(data_dir: Path) -> None:
    """Each start is on what the one before has left. Two have an engine: stopped, and killed."""
    for number, status, frozen, environment in (
        (signal.SIGTERM, 0, False, {}),
        (signal.SIGTERM, None, True, NO_ENGINE),
        (signal.SIGKILL, -9, False, {}),
        (signal.SIGINT, 0, False, NO_ENGINE),
    ):
        async with service_process(data_dir, **environment) as (process, client):
            assert (await client.get("/runs")).json() == {"items": [], "next_cursor": None}
            children = psutil.Process(process.pid).children(recursive=True)
            databases = [database for database in children if _name(database) == "postgres"]
            assert len(databases) > 1  # Postgres and its workers
            assert environment or len(children) > len(databases)  # the engine
            if frozen:
                for database in databases:
                    with suppress(psutil.NoSuchProcess):
                        database.suspend()
            process.send_signal(number)
            assert await process.wait() == status or frozen
            await until(partial(_gone, children))


def _name(process: psutil.Process) -> str:
    """Empty if it has ended meanwhile, as short-lived workers of Postgres do."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


async def test_health_tells_database_and_engine_apart(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert (await client.get("/health/live")).json() == {"status": "ok", "version": version("learnloop")}
        ready = await client.get("/health/ready")
        assert ready.json() == {
            "status": "ready",
            "database": "ok",
            "engine": "stopped",
            "degraded": [],
            "unusable_base_models": {},
        }
        assert [environment["name"] for environment in (await client.get("/environments")).json()["items"]].count(
            "email_search"
        ) == 1
        assert "reference" in [judge["name"] for judge in (await client.get("/judges")).json()["items"]]


_REFUSALS = """
import json, os, sys
from learnloop_service.app.server import serve
from learnloop_service.app.settings import load_settings

for environment in sys.argv[1:]:
    os.environ.update(json.loads(environment))
    try:
        serve(load_settings(_env_file=None))
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
"""


async def test_why_it_does_not_start_is_raised_to_the_caller(data_dir: Path) -> None:
    untouched, free, in_use = (data_dir / name for name in ("untouched", "free", "held"))
    in_use.mkdir()
    holder = DataDirectory(in_use)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        changes = (
            {"LEARNLOOP_DATA_DIR": str(untouched), "LEARNLOOP_PORT": port},
            {"LEARNLOOP_DATA_DIR": str(free), "LEARNLOOP_PORT": "0", "DATABASE_URL": "mysql://u:secret@h/d"},
            {"LEARNLOOP_DATA_DIR": str(in_use), "DATABASE_URL": ""},
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _REFUSALS, *map(json.dumps, changes)),
            env=process_environment(data_dir, **NO_ENGINE),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        out, _ = await process.communicate()
    holder.release()
    of_port, of_database, of_directory = out.decode().splitlines()
    assert of_port.startswith("CannotListen: cannot listen on 127.0.0.1:")
    assert "another process listens there" in of_port
    assert not untouched.exists()  # nothing was started
    assert of_database.startswith("DatabaseUrlError: DATABASE_URL")
    assert "is in use by another service" in of_directory
