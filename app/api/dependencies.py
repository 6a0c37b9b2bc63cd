"""What handlers share: the service, the caller, and the parameters of lists."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from app.api.run_documents import RunDocuments
from app.auth.caller import Caller
from app.service import Service

# All are coroutines: FastAPI runs plain functions in a thread, which costs more than the rest of a request.


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _run_documents(request: Request) -> RunDocuments:
    documents: RunDocuments = request.app.state.run_documents
    return documents


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


_NO_NUL = r"^[^\x00]+$"
"""Postgres text cannot hold U+0000, so no such id exists."""

CurrentService = Annotated[Service, Depends(_service)]
CurrentRunDocuments = Annotated[RunDocuments, Depends(_run_documents)]
CurrentCaller = Annotated[Caller, Depends(_caller)]
"""Who makes the request. Requests for public paths have no caller."""
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items to return")]
NumberCursor = Annotated[str | None, Query(pattern=r"^\d{1,18}$", description="`next_cursor` of the previous page")]
IdCursor = Annotated[
    str | None, Query(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$", description="`next_cursor` of the previous page")
]
RunId = Annotated[str, Path(max_length=64, pattern=_NO_NUL)]
TrajectoryId = Annotated[str, Path(max_length=200, pattern=_NO_NUL)]
ScenarioId = Annotated[str | None, Query(max_length=400, pattern=_NO_NUL)]
