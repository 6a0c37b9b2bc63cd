"""The service on a real port, for as long as a test needs it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from pydantic_settings import PydanticBaseSettingsSource

from learnloop_service.app.main import create_app, server_config
from learnloop_service.app.processes.engine import EngineHandle
from learnloop_service.app.settings import Settings
from tests.conditions import PATIENCE_S, answered, until
from tests.fakes.scripted_learning import NOWHERE, ScriptedBackend, ScriptedLoop


class _GivenSettings(Settings):
    """Settings that take nothing from the developer's environment or `.env`."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: object, init_settings: PydanticBaseSettingsSource, *others: object, **more: object
    ) -> tuple[PydanticBaseSettingsSource]:
        return (init_settings,)


def settings_for(data_dir: Path, database_url: str | None, **more: Any) -> Settings:
    """Only what is given and the defaults."""
    return _GivenSettings(**{"data_dir": data_dir, "database_url": database_url, "port": 0} | more)


@asynccontextmanager
async def served(
    settings: Settings, learn: ScriptedLoop, backend: ScriptedBackend | None = None, engine: EngineHandle | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the running service; the service is stopped as SIGTERM would stop it. `engine` is the caller's."""
    backend = backend or ScriptedBackend()
    if backend.endpoint_url != NOWHERE:  # what samples its models is the engine
        settings = settings.model_copy(update={"engine_url": backend.endpoint_url.removesuffix("/v1")})
    app = create_app(settings, connect=backend.connect, learn=learn, engine=engine)
    async with app.router.lifespan_context(app):
        server = uvicorn.Server(server_config(app, settings))
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started or serving.done())
        if serving.done():
            await serving
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            await serving


async def start(client: httpx.AsyncClient, body: Any) -> str:
    """Start a run and return its id."""
    response = await client.post("/learn-loop", json=body)
    assert response.status_code == 202, response.text
    return str(response.json()["run_id"])


async def ended(client: httpx.AsyncClient, run_id: str) -> Any:
    """The run once nobody works on it any more."""
    return await run_with(client, run_id, "completed", "failed", "paused")


async def run_with(client: httpx.AsyncClient, run_id: str, *statuses: str) -> Any:
    """The run once it has one of these statuses."""
    return await run_once(client, run_id, lambda run: run["status"] in statuses)


async def run_once(
    client: httpx.AsyncClient, run_id: str, condition: Callable[[Any], object], timeout_s: float = PATIENCE_S
) -> Any:
    """The run once the condition holds for it. Raises TimeoutError."""

    async def ask() -> Any:
        return (await client.get(f"/runs/{run_id}")).raise_for_status().json()

    return await answered(ask, condition, timeout_s)
