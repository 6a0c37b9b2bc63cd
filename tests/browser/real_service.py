"""The service as users start it, with the real engine and the shipped tiny base, on a database of the tests."""

import os
from asyncio.subprocess import DEVNULL, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from learnloop_service.app.cli.service_process import free_port
from tests.conditions import answered
from tests.fakes.engine_process import EngineProcess
from tests.fakes.forked_learnloop import learnloop


@asynccontextmanager
async def real_service(data_dir: Path, database_url: str, engine: EngineProcess) -> AsyncIterator[str]:
    """Its base URL."""
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEARNLOOP_", "ART_"))}
    environment = kept | {"DATABASE_URL": database_url, "LEARNLOOP_LOG_LEVEL": "warning"}
    environment["LEARNLOOP_ENGINE_URL"] = engine.base_url.removesuffix("/v1")
    command = learnloop("serve", "--port", str(port), "--data-dir", str(data_dir))
    process = await create_subprocess_exec(*command, env=environment, stdout=DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:

            async def ready() -> bool:
                try:
                    return (await client.get("/health/ready")).status_code == 200
                except httpx.TransportError:
                    assert process.returncode is None, "the service has ended"
                    return False

            await answered(ready, bool)
        yield url
    finally:
        process.terminate()
        await process.wait()
