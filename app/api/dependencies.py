"""Dependencies that handlers share: the parts of the service, the caller, and the parameters of lists."""

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from learnloop_service.app.api.heavy_reads import HeavyReads
from learnloop_service.app.api.run_documents import RunDocuments
from learnloop_service.app.api.stored_texts import StoredTexts
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.callers import Callers
from learnloop_service.app.db.database import Database
from learnloop_service.app.events.feed import EventFeed
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.service import HandlerResources
from learnloop_service.app.settings import Settings
from learnloop_service.app.webhooks.endpoints import Endpoints
from learnloop_service.app.worker.runner import Runner

# All dependencies are coroutines: FastAPI runs plain functions in a thread, which costs more than the rest of a
# request.


def of_app(name: str) -> Any:
    """Return the dependency on a part of the application's state."""

    async def part(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(part)


def _of_service(name: str) -> Any:
    """Return the dependency on a part of the service."""

    async def part(request: Request) -> Any:
        return getattr(request.app.state.service, name)

    return Depends(part)


CurrentService = Annotated[HandlerResources, of_app("service")]
"""The service, for handlers that need several parts of it; the others take only the part that they need."""


async def _service_url(request: Request, service: CurrentService) -> str:
    return str(service.settings.public_url or request.base_url).rstrip("/")


async def _caller(request: Request) -> Any:
    return request.state.caller


NO_NUL = r"^[^\x00]+$"
"""Excludes U+0000, which Postgres text cannot contain, so no such id exists."""

CurrentSettings = Annotated[Settings, _of_service("settings")]
ServiceUrl = Annotated[str, Depends(_service_url)]
"""URL at which the caller reaches the service, without a trailing slash: `public_url`, or that of the request."""
CurrentDatabase = Annotated[Database, _of_service("database")]
CurrentStore = Annotated[RunStore, _of_service("store")]
CurrentQueries = Annotated[RunQueries, _of_service("queries")]
CurrentRunner = Annotated[Runner, _of_service("runner")]
CurrentFeed = Annotated[EventFeed, _of_service("feed")]
CurrentEndpoints = Annotated[Endpoints, _of_service("webhooks")]
CurrentRunDocuments = Annotated[RunDocuments, of_app("run_documents")]
CurrentHeavyReads = Annotated[HeavyReads, of_app("heavy_reads")]
CurrentStoredTexts = Annotated[StoredTexts, of_app("stored_texts")]
CurrentJudging = Annotated[HeavyReads, of_app("judging")]
"""Like CurrentHeavyReads but with a separate queue, because a judge model can take minutes."""
CurrentScoring = Annotated[HeavyReads, of_app("scoring")]
"""Like CurrentHeavyReads but with a separate queue, because the engine may be training."""
CurrentCallers = Annotated[Callers, of_app("callers")]
CurrentCaller = Annotated[Caller, Depends(_caller)]
"""The caller of the request. Requests for public paths have none."""
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items to return")]
NumberCursor = Annotated[str | None, Query(pattern=r"^\d{1,18}$", description="`next_cursor` of the previous page")]
IdCursor = Annotated[
    str | None, Query(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$", description="`next_cursor` of the previous page")
]
RunId = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the run")]
RunIdQuery = Annotated[
    str | None, Query(max_length=64, pattern=NO_NUL, description="Id of the run that is asked about")
]
TrajectoryId = Annotated[str, Path(max_length=200, pattern=NO_NUL, description="Id of the trajectory")]
ScenarioId = Annotated[
    str | None, Query(max_length=400, pattern=NO_NUL, description="Only rollouts of this scenario. Default: all")
]
