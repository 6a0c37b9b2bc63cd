"""Is the process alive, and can it do its work?"""

import asyncio
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy import text

from app.api.dependencies import CurrentService
from app.errors import DATABASE_DOWN
from app.processes.engine import EngineState

router = APIRouter(prefix="/health", tags=["health"])
_PATIENCE_S = 2.0


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """`ready` needs the database only: while the engine comes up, runs are accepted and wait for it."""

    status: Literal["ready", "not ready"]
    database: Literal["ok", "unreachable"]
    engine: EngineState


@router.get("/live")
async def live() -> Alive:
    """The process answers."""
    return Alive()


@router.get("/ready", responses={503: {"model": Readiness}})
async def ready(service: CurrentService, response: Response) -> Readiness:
    """The database answers, and what the engine is doing. 503 while the database does not."""
    try:
        async with asyncio.timeout(_PATIENCE_S), service.database.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except (*DATABASE_DOWN, TimeoutError):
        response.status_code = 503
        return Readiness(status="not ready", database="unreachable", engine=service.engine.state)
    return Readiness(status="ready", database="ok", engine=service.engine.state)
