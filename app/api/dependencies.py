"""Dependencies that handlers share: the parts of the service, the caller, and the parameters of lists."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from app.api.heavy_reads import HeavyReads
from app.api.run_documents import RunDocuments
from app.api.stored_texts import StoredTexts
from app.auth.caller import Caller
from app.db.database import Database
from app.events.feed import EventFeed
from app.runs.queries import RunQueries
from app.runs.store import RunStore
from app.service import Service
from app.settings import Settings
from app.webhooks.endpoints import Endpoints
from app.worker.runner import Runner

# All of them are coroutines: FastAPI runs plain functions in a thread, which costs more than the rest of a request.


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


CurrentService = Annotated[Service, Depends(_service)]
"""For handlers that need several parts of the service. The others take only the part that they need."""


async def _settings(service: CurrentService) -> Settings:
    return service.settings


async def _service_url(request: Request, service: CurrentService) -> str:
    return str(service.settings.public_url or request.base_url).rstrip("/")


async def _database(service: CurrentService) -> Database:
    return service.database


async def _store(service: CurrentService) -> RunStore:
    return service.store


async def _queries(service: CurrentService) -> RunQueries:
    return service.queries


async def _runner(service: CurrentService) -> Runner:
    return service.runner


async def _feed(service: CurrentService) -> EventFeed:
    return service.feed


async def _endpoints(service: CurrentService) -> Endpoints:
    return service.webhooks


async def _run_documents(request: Request) -> RunDocuments:
    documents: RunDocuments = request.app.state.run_documents
    return documents


async def _heavy_reads(request: Request) -> HeavyReads:
    heavy_reads: HeavyReads = request.app.state.heavy_reads
    return heavy_reads


async def _stored_texts(request: Request) -> StoredTexts:
    texts: StoredTexts = request.app.state.stored_texts
    return texts


async def _judging(request: Request) -> HeavyReads:
    judging: HeavyReads = request.app.state.judging
    return judging


async def _scoring(request: Request) -> HeavyReads:
    scoring: HeavyReads = request.app.state.scoring
    return scoring


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


NO_NUL = r"^[^\x00]+$"
"""Excludes U+0000, which Postgres text cannot contain, so no such id exists."""

CurrentSettings = Annotated[Settings, Depends(_settings)]
ServiceUrl = Annotated[str, Depends(_service_url)]
"""URL at which the caller reaches the service, without a trailing slash: `public_url`, or that of the request."""
CurrentDatabase = Annotated[Database, Depends(_database)]
CurrentStore = Annotated[RunStore, Depends(_store)]
CurrentQueries = Annotated[RunQueries, Depends(_queries)]
CurrentRunner = Annotated[Runner, Depends(_runner)]
CurrentFeed = Annotated[EventFeed, Depends(_feed)]
CurrentEndpoints = Annotated[Endpoints, Depends(_endpoints)]
CurrentRunDocuments = Annotated[RunDocuments, Depends(_run_documents)]
CurrentHeavyReads = Annotated[HeavyReads, Depends(_heavy_reads)]
CurrentStoredTexts = Annotated[StoredTexts, Depends(_stored_texts)]
CurrentJudging = Annotated[HeavyReads, Depends(_judging)]
"""Like CurrentHeavyReads but with a separate queue, because a judge model can take minutes."""
CurrentScoring = Annotated[HeavyReads, Depends(_scoring)]
"""Like CurrentHeavyReads but with a separate queue, because the engine may be training."""
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
