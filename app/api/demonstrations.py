"""Demonstrations: versioned conversations that runs imitate before reinforcement learning."""

import asyncio
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from learnloop_service.app.api.datasets import (
    NamedOnly,
    delete_document,
    document_fields,
)
from learnloop_service.app.api.dependencies import (
    CurrentCaller,
    CurrentDatabase,
    CurrentHeavyReads,
    CurrentSettings,
    CurrentStore,
    CurrentStoredTexts,
    RunId,
)
from learnloop_service.app.api.documents import Hash, stored
from learnloop_service.app.api.evaluations import EvaluationId
from learnloop_service.app.api.heavy_reads import HeavyReads
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.raw_bodies import file_body
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.datasets import documents, rows
from learnloop_service.app.datasets.demonstrations import BadDemonstrations, read_demonstrations
from learnloop_service.app.datasets.documents import NewDocument, save_version
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.operations.rejection_sampling import (
    RolloutSource,
    best_rollouts,
    save_best,
)
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.datasets import (
    BestOfEvaluation,
    BestRollouts,
    BestRolloutsStored,
    DemonstrationsDeleted,
    DemonstrationsOut,
    RolloutChoice,
)

router = keyed_router("documents")
_CONVERSATION = '{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}\n'
_BODY = file_body(
    "JSON Lines, a conversation each, as in OpenAI's files for fine-tuning: `messages` and maybe `tools`. What an "
    "assistant message of `weight` 0 says is not learnt. Any content type.",
    conversation=("A conversation", _CONVERSATION),
)


@router.post("/demonstrations", status_code=201, openapi_extra=_BODY)
async def store_demonstrations(
    database: CurrentDatabase,
    caller: CurrentCaller,
    request: Request,
    name: Annotated[
        str, Query(pattern=DATASET_PATTERN, description="Name of the demonstrations: letters, digits, `-` and `_`")
    ],
) -> DemonstrationsOut:
    """Store conversations to imitate. The body is the JSON Lines file itself.

    Learn-loops name them in `warm_start.demonstrations.dataset`, as `NAME` (the newest version then) or `NAME@VERSION`.
    Storing the same ones under the same name again has no effect.
    """
    body = await request.body()
    try:
        new = await asyncio.to_thread(_document, caller.namespace, body)
    except BadDemonstrations as error:
        raise InvalidRequest(("body",), str(error)) from error
    origin = {"source": "api", "bytes": len(body)}
    return _demonstrations(await save_version(database, new, "demonstrations", name, origin))


@router.post("/runs/{run_id}/demonstrations", status_code=201)
async def store_best_rollouts(
    store: CurrentStore,
    database: CurrentDatabase,
    heavy_reads: CurrentHeavyReads,
    settings: CurrentSettings,
    caller: CurrentCaller,
    run_id: RunId,
    selection: BestRollouts,
) -> BestRolloutsStored:
    """Store the best rollouts of a run as demonstrations. The run must have ended.

    They are for the warm start of another run. Only rollouts of training scenarios are taken, never of held-out
    ones. The same request gives the same demonstrations, as long as the run's trajectories are kept. Those that a
    caller of all projects stores, all projects can use. Those on tasks that were made from what users asked are deleted
    with the user.
    """
    source = RolloutSource.of_run(await store.get(run_id), selection)
    return await _best(database, heavy_reads, caller.namespace, source, selection, settings.max_graph_bytes)


@router.post("/evaluations/{evaluation_id}/demonstrations", status_code=201)
async def store_best_of_evaluation(
    database: CurrentDatabase,
    heavy_reads: CurrentHeavyReads,
    settings: CurrentSettings,
    caller: CurrentCaller,
    evaluation_id: EvaluationId,
    selection: BestOfEvaluation,
) -> BestRolloutsStored:
    """Store the best rollouts of an evaluation of training scenarios as demonstrations. It must have ended.

    The rest is as for a run.
    """
    source = RolloutSource.of_evaluation(await EvaluationStore(database).get(evaluation_id), selection)
    return await _best(database, heavy_reads, caller.namespace, source, selection, settings.max_graph_bytes)


async def _best(
    database: Database,
    heavy_reads: HeavyReads,
    project: str,
    source: RolloutSource,
    selection: RolloutChoice,
    max_bytes: int,
) -> BestRolloutsStored:
    best, candidates = await heavy_reads.do(
        project, lambda database: best_rollouts(database, source, selection, max_bytes)
    )
    row = await save_best(database, project, selection.name, source, best)
    return BestRolloutsStored(
        **_demonstrations(row).model_dump(),
        rollouts=candidates,
        kept=best.rollouts.total(),
        scenarios=len(best.rollouts),
        unfit=best.unfit,
    )


def _document(project: str, body: bytes) -> NewDocument:
    """Parse the file. Raises BadDemonstrations."""
    return documents.document(project, "demonstrations", read_demonstrations(body))


@router.get("/demonstrations")
async def list_demonstrations(
    database: CurrentDatabase, caller: CurrentCaller, paging: ById, name: NamedOnly = None
) -> Page[DemonstrationsOut]:
    """List the versions of stored demonstrations, newest first."""
    versions = await rows.listed(database, caller.project, "demonstrations", name, paging.cursor, paging.limit)
    return paging.page(versions, _demonstrations, lambda row: row.id)


@router.get("/demonstrations/{sha256}")
async def get_demonstrations(
    texts: CurrentStoredTexts, database: CurrentDatabase, caller: CurrentCaller, sha256: Hash
) -> StreamingResponse:
    """Get stored demonstrations, as `{"demonstrations": [...]}`."""
    return await stored(texts, database, caller.project, "demonstrations", sha256)


@router.delete("/demonstrations/{sha256}")
async def delete_demonstrations(
    database: CurrentDatabase, caller: CurrentCaller, sha256: Hash
) -> DemonstrationsDeleted:
    """Delete stored demonstrations of the caller's project, and all their names.

    Returns the names. Demonstrations that a run still needs cannot be deleted: `used_by` of the error names it.
    """
    return DemonstrationsDeleted(**await delete_document(database, caller, "demonstrations", sha256))


def _demonstrations(row: DatasetVersion) -> DemonstrationsOut:
    return DemonstrationsOut(**document_fields(row))
