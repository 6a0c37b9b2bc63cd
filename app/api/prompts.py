"""Prompts: versioned texts that an agent brings to its model, for evaluations, runs and questions."""

from typing import Annotated

from fastapi import Query

from learnloop_service.app.api.datasets import (
    NamedOnly,
    delete_document,
    document_fields,
)
from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase
from learnloop_service.app.api.documents import Hash
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.datasets import removal, rows
from learnloop_service.app.datasets.removal import Users
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import InvalidRequest, NotFound
from learnloop_service.app.runs.documents import UnknownDocument, save_version
from learnloop_service.app.runs.stored_prompts import prompt_document, read_stored
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.prompts import PromptOut, PromptsDeleted, PromptStored, PromptTexts, PromptToStore
from learnloop_service.training.prompt import InvalidPrompt, read_prompt

router = keyed_router("documents")


@router.post("/prompts", status_code=201)
async def store_prompt(
    database: CurrentDatabase,
    caller: CurrentCaller,
    prompt: PromptToStore,
    name: Annotated[
        str, Query(pattern=DATASET_PATTERN, description="Name of the prompt: letters, digits, `-` and `_`")
    ],
) -> PromptOut:
    """Store a prompt. The body is the prompt itself.

    Evaluations, learn-loops and questions name it in `prompt`, as `NAME` (the newest version then) or `NAME@VERSION`.
    Storing the same one under the same name again has no effect.
    """
    try:
        read = read_prompt(prompt.model_dump())
    except InvalidPrompt as error:
        where = ("body",) if error.part is None else ("body", "parts", error.part)
        raise InvalidRequest(where, error.why) from error
    new = prompt_document(caller.namespace, read)
    row = await save_version(database, new, "prompt", name, {"author": caller.actor})
    return _prompt_out(row, await removal.users_of_prompts(database, caller.project, [row.sha256]))


@router.get("/prompts")
async def list_prompts(
    database: CurrentDatabase, caller: CurrentCaller, paging: ById, name: NamedOnly = None
) -> Page[PromptOut]:
    """List the versions of stored prompts, newest first."""
    versions = await rows.listed(database, caller.project, "prompt", name, paging.cursor, paging.limit)
    users = await removal.users_of_prompts(database, caller.project, [row.sha256 for row in versions])
    return paging.page(versions, lambda row: _prompt_out(row, users), lambda row: row.id)


@router.get("/prompts/{sha256}")
async def get_prompt(database: CurrentDatabase, caller: CurrentCaller, sha256: Hash) -> PromptStored:
    """Get a stored prompt."""
    try:
        prompt = await read_stored(database, caller.project, PromptReference(sha256=sha256))
    except UnknownDocument as error:
        raise NotFound(str(error)) from error
    assert prompt is not None  # there is a reference
    return PromptStored(prompt=PromptTexts(parts=dict(prompt.parts)))


@router.delete("/prompts/{sha256}")
async def delete_prompt(database: CurrentDatabase, caller: CurrentCaller, sha256: Hash) -> PromptsDeleted:
    """Delete a stored prompt of the caller's project, and all its names.

    Returns the names. A prompt that a run or an evaluation has cannot be deleted: `used_by` of the error names it.
    """
    return PromptsDeleted(**await delete_document(database, caller, "prompt", sha256))


def _prompt_out(row: DatasetVersion, users: Users) -> PromptOut:
    return PromptOut(**document_fields(row), used_by=users[row.sha256])
