"""Liveness and readiness."""

import asyncio
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Literal

from fastapi import Response

from learnloop_service.app.aio.pulse import Trouble
from learnloop_service.app.api.dependencies import CurrentService
from learnloop_service.app.api.routers import public_router
from learnloop_service.app.backends import unusable_base_models
from learnloop_service.app.processes.engine import EngineState
from learnloop_service.app.schemas.base import ResponseModel

router = public_router("health", prefix="/health")


class Alive(ResponseModel):
    """The process responds."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""
    version: str = version("learnloop")
    """The version of Learnloop."""


class Degraded(ResponseModel):
    """A part that does not do its work."""

    part: Literal["database", "engine"]
    """What does not answer as it should."""
    since: datetime
    """Since when."""
    reason: str
    """What is wrong with it."""


class Readiness(ResponseModel):
    """`not ready` depends on the database only: while the engine is away, runs are accepted and wait for it."""

    status: Literal["ready", "degraded", "not ready"]
    """Whether requests are served; `degraded`: yes, but what needs the engine fails or waits."""
    database: Literal["ok", "unreachable"]
    """Whether the database responds."""
    engine: EngineState
    """State of the engine, which samples and trains models."""
    degraded: list[Degraded]
    """What keeps the status from being `ready`."""
    unusable_base_models: dict[str, str]
    """Configured base models that cannot be loaded, with the file at fault. Runs on the others go on."""


@router.head("/live", include_in_schema=False)
@router.get("/live")
async def live() -> Alive:
    """Liveness probe: the process responds."""
    return Alive()


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"model": Readiness}})
async def ready(service: CurrentService, response: Response) -> Readiness:
    """Readiness probe. 503 while the database is unreachable; says which parts do not answer, the engine included."""
    database, engine = service.database_pulse.trouble, service.engine.trouble
    degraded = [*_degraded("database", database), *_degraded("engine", engine)]
    if database is not None:
        response.status_code = 503
    return Readiness(
        status="not ready" if database else "degraded" if degraded else "ready",
        database="unreachable" if database else "ok",
        engine=service.engine.state,
        degraded=degraded,
        unusable_base_models=await asyncio.to_thread(unusable_base_models, service.settings),
    )


def _degraded(part: Literal["database", "engine"], trouble: Trouble | None) -> list[Degraded]:
    if trouble is None:
        return []
    since = datetime.now(UTC) - timedelta(seconds=trouble.seconds)
    return [Degraded(part=part, since=since.replace(microsecond=0), reason=trouble.reason)]
