"""Liveness and readiness."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Response
from sqlalchemy import text

from app.api.dependencies import CurrentService
from app.errors import DATABASE_DOWN
from app.processes.engine import EngineState
from app.schemas.base import ResponseModel

router = APIRouter(prefix="/health", tags=["health"])
_PATIENCE_S = 2.0


class Alive(ResponseModel):
    status: Literal["ok"] = "ok"


class Readiness(ResponseModel):
    """`ready` depends on the database only: while the engine starts, runs are accepted and wait for it."""

    status: Literal["ready", "not ready"]
    database: Literal["ok", "unreachable"]
    engine: EngineState


@router.get("/live")
async def live() -> Alive:
    """Liveness probe: the process responds."""
    return Alive()


@router.get("/ready", responses={503: {"model": Readiness}})
async def ready(service: CurrentService, response: Response) -> Readiness:
    """Readiness probe: 503 while the database is unreachable. Also reports the state of the engine."""
    try:
        async with asyncio.timeout(_PATIENCE_S), service.database.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except (*DATABASE_DOWN, TimeoutError):
        response.status_code = 503
        return Readiness(status="not ready", database="unreachable", engine=service.engine.state)
    return Readiness(status="ready", database="ok", engine=service.engine.state)
