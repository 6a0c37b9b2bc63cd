"""What a link to a run shows where it is posted: the run's name and its verdict, for callers who may read the run."""

import json
from dataclasses import dataclass

from fastapi import Request

from learnloop_service.app.api.run_documents import RunDocuments
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.scopes import PAGES, route_path
from learnloop_service.app.auth.tenancy import RUN, require
from learnloop_service.app.errors import DATABASE_DOWN, NotFound

_RUNS = f"{PAGES}/runs/"
_LONGEST_ID = 64


@dataclass(frozen=True, slots=True)
class Preview:
    """A page's title and one sentence about it."""

    title: str
    text: str


async def preview_of(request: Request) -> Preview | None:
    """Return the preview of a page of a run; None for other pages, unknown runs, and callers who may not read it."""
    caller: Caller | None = getattr(request.state, "caller", None)
    path = route_path(request.scope)
    run_id = path.removeprefix(_RUNS).partition("/")[0]
    if caller is None or not path.startswith(_RUNS) or not 0 < len(run_id) <= _LONGEST_ID or "\0" in run_id:
        return None
    documents: RunDocuments = request.app.state.run_documents
    try:
        await require(request.app.state.service.database, caller, RUN, run_id)
        run = json.loads(await documents.get(run_id))
    except (NotFound, *DATABASE_DOWN):
        return None
    return Preview(run["name"] or f"{run['model']['project']}/{run['model']['name']}", run["verdict"]["text"])
