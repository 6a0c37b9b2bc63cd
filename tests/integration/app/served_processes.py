"""The service in a process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from learnloop_service.app.settings import Settings
from tests.conditions import answered

_SERVE = """
from learnloop_service.app.server import serve
from learnloop_service.app.settings import load_settings
serve(load_settings(_env_file=None))
"""
NO_ENGINE = {"LEARNLOOP_ENGINE_URL": "http://127.0.0.1:9"}
"""Somebody else's: none of our own is started, whose imports take seconds."""


def process_environment(data_dir: Path, **more: str) -> dict[str, str]:
    ours = {name for field in Settings.model_fields for name in (f"LEARNLOOP_{field.upper()}", field.upper())}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"LEARNLOOP_DATA_DIR": str(data_dir), "LEARNLOOP_LOG_FORMAT": "json", **more}


@asynccontextmanager
async def service_process(
    data_dir: Path, command: Sequence[str] = (), **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """The service in a process, its database ready, with everything it starts; killed at the end. `command` starts it,
    in place of a new interpreter."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    process = await asyncio.create_subprocess_exec(
        *(command or (sys.executable, "-c", _SERVE)),
        env=process_environment(data_dir, LEARNLOOP_PORT=str(port), LEARNLOOP_STOP_TIMEOUT_S="15", **more),
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            await answered(lambda: _is_up(client), bool)
            yield process, client
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _is_up(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health/ready")).status_code == 200
    except httpx.TransportError:
        return False
