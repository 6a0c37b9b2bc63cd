"""Graphs and sets of scenarios: stored once, then passed to learn-loops by hash."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import Path
from fastapi.responses import JSONResponse, Response, StreamingResponse

import learnloop_service.environment.registry
from learnloop_service.app.api.dependencies import (
    CurrentCaller,
    CurrentDatabase,
    CurrentQueries,
    CurrentSettings,
    CurrentStore,
    CurrentStoredTexts,
    RunId,
)
from learnloop_service.app.api.large_bodies import BigBodyRoute, GraphBody, ScenariosBody
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.api.stored_texts import StoredTexts
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.datasets import documents, rows
from learnloop_service.app.datasets.documents import Kind, NewDocument, UnknownDocument
from learnloop_service.app.datasets.references import UnknownDataset, pin
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import InvalidRequest, NotFound
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.schemas.documents import (
    GraphListed,
    GraphRequest,
    GraphsOut,
    GraphStored,
    ScenariosRequest,
    ScenariosStored,
)
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.environment.registry import UnknownEnvironment

router = keyed_router("documents", route_class=BigBodyRoute)
_LISTED = 200
Hash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the canonical JSON")]


@router.post("/graphs", status_code=201)
async def store_graph(database: CurrentDatabase, caller: CurrentCaller, request: GraphBody) -> GraphStored:
    """Store a graph for the environment that takes one. Learn-loops take its hash in `graph`.

    Storing the same graph again has no effect.
    """
    new = await asyncio.to_thread(_checked_graph, caller, request)
    await _save(database, new)
    return GraphStored(**new.reference, links={"self": f"/graphs/{new.reference['sha256']}"})


@router.get("/graphs")
async def list_graphs(database: CurrentDatabase, caller: CurrentCaller) -> GraphsOut:
    """List stored graphs, newest first: at most 200. Those that learn-loops brought are among them."""
    graphs = await documents.listed(database, caller.project, "graph", _LISTED)
    return GraphsOut(
        items=[
            GraphListed(sha256=sha256, bytes=size, created_at=created_at, links={"self": f"/graphs/{sha256}"})
            for sha256, size, created_at in graphs
        ]
    )


@router.get("/graphs/{sha256}")
async def get_graph(
    texts: CurrentStoredTexts, database: CurrentDatabase, caller: CurrentCaller, sha256: Hash
) -> StreamingResponse:
    """Get a stored graph. It has the form in which `POST /graphs` takes it."""
    return await stored(texts, database, caller.project, "graph", sha256)


@router.post("/scenarios", status_code=201)
async def store_scenarios(
    database: CurrentDatabase, settings: CurrentSettings, caller: CurrentCaller, request: ScenariosBody
) -> ScenariosStored:
    """Store scenarios for an environment. Learn-loops take their hash or name in `environment.config.scenarios`.

    A `graph` is only used to check the scenarios; it is not stored. Questions about an `inbox` are checked on it.
    """
    choice = Choice(name=request.environment, config=_config(request))
    try:
        pinned = await pin(database, settings.data_dir, choice, caller.project)
        environment = await documents.resolve_references(database, settings.data_dir, pinned, caller.project)
    except (UnknownDataset, UnknownDocument) as error:
        raise InvalidRequest(("body", error.kind), str(error)) from error
    new = await asyncio.to_thread(_checked_scenarios, caller, environment, settings.data_dir)
    hash = str(new.reference["sha256"])
    links = {"self": f"/scenarios/{hash}"}
    if request.name is None:
        await _save(database, new)
        return ScenariosStored(**new.reference, links=links)
    inbox = pinned.config.get("inbox")
    version = NewVersion(
        caller.namespace,
        "scenarios",
        request.name,
        hash,
        int(new.reference["count"]),
        environment=request.environment,
        inbox_sha256=inbox["sha256"] if isinstance(inbox, dict) else None,
        origin={"source": "api"},
    )
    async with database.begin() as tx:
        await documents.save(tx, [new])
        row = await rows.add(tx, version)
    return ScenariosStored(**new.reference, name=row.name, version=row.version, links=links)


@router.get("/scenarios/{sha256}")
async def get_scenarios(
    texts: CurrentStoredTexts, database: CurrentDatabase, caller: CurrentCaller, sha256: Hash
) -> StreamingResponse:
    """Get stored scenarios. They have the form in which they were posted."""
    return await stored(texts, database, caller.project, "scenarios", sha256)


@router.get("/runs/{run_id}/graph")
async def get_run_graph(
    store: CurrentStore, queries: CurrentQueries, texts: CurrentStoredTexts, database: CurrentDatabase, run_id: RunId
) -> Response:
    """Get the graph of a run.

    It is the one that the run was started with, or else the invented one whose nodes have its node scores.
    """
    run = await store.get(run_id)
    sha256 = documents.reference(run.stored_request.environment, "graph")
    if sha256 is None:
        nodes = await _invented_graph(queries, run)
        return JSONResponse({"graph": nodes})
    return await stored(texts, database, run.model_project, "graph", sha256)


async def _invented_graph(queries: RunQueries, run: Run) -> list[Any]:
    """Return the nodes of the invented graph that the run scores. Raises NotFound."""
    graphs = learnloop_service.environment.registry.traits(run.environment).documents.get("graph")
    nodes = graphs.learned_on((await queries.reflection(run.id, None)).state) if graphs else None
    if nodes is not None:
        return list(nodes)
    raise NotFound(f"Run {run.id} was started without a graph.")


def _checked_graph(caller: Caller, request: GraphRequest) -> NewDocument:
    try:
        _, graphs = learnloop_service.environment.registry.document("graph")
        graphs.check(request.graph)
        return documents.document(caller.namespace, "graph", request.graph)
    except (UnknownEnvironment, ValueError) as error:
        raise InvalidRequest(("body", "graph"), str(error)) from error


def _config(request: ScenariosRequest) -> dict[str, Any]:
    about = {"graph": request.graph, "inbox": request.inbox}
    return {"scenarios": request.scenarios, **{key: value for key, value in about.items() if value is not None}}


def _checked_scenarios(caller: Caller, choice: Choice, data_dir: FilePath) -> NewDocument:
    """Check the scenarios and return them as a document. Their graph or inbox is checked alone first, so that an error
    names the right field."""
    name, config = choice.name, choice.config
    about = {key: value for key, value in config.items() if key != "scenarios"}
    field = next(iter(about), "scenarios")
    try:
        learnloop_service.environment.registry.build(name, about, data_dir).close()
        field = "scenarios"
        learnloop_service.environment.registry.build(name, config, data_dir).close()
        return documents.document(caller.namespace, "scenarios", config["scenarios"])
    except (UnknownEnvironment, PluginFault) as error:
        raise InvalidRequest(("body", "environment"), str(error)) from error
    except ValueError as error:
        raise InvalidRequest(("body", field), str(error)) from error


async def _save(database: Database, new: NewDocument) -> None:
    async with database.begin() as tx:
        await documents.save(tx, [new])


async def stored(
    texts: StoredTexts, database: Database, project: str | None, kind: Kind, sha256: str
) -> StreamingResponse:
    """Return the document with that hash, as an object with its kind as the key. Raises NotFound."""
    try:
        parts = await texts.parts(database, project, kind, sha256)
    except UnknownDocument as error:
        raise NotFound(str(error)) from error
    return StreamingResponse(_object(kind, parts), media_type="application/json")


async def _object(kind: Kind, parts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield f'{{"{kind}": '
    async for part in parts:
        yield part
    yield "}"
