"""Prompts: versioned texts that an agent brings to its model, for evaluations, runs and questions."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from learnloop_service.app.api.datasets import NamedOnly, delete_document, document_fields
from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentDatabase, CurrentSettings, RunIdQuery
from learnloop_service.app.api.documents import Hash
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.datasets import removal, rows
from learnloop_service.app.datasets.documents import UnknownDocument, save_version
from learnloop_service.app.datasets.removal import Users
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import InvalidRequest, NotFound
from learnloop_service.app.operations.agent_texts import agent_texts
from learnloop_service.app.runs.stored_prompts import pinned_prompt, prompt_document, read_stored
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.prompts import (
    PromptFound,
    PromptOut,
    PromptsDeleted,
    PromptStored,
    PromptTexts,
    PromptToStore,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import InvalidPrompt, Prompt, read_prompt

router = keyed_router("documents")
PromptToName = Annotated[
    str, Query(pattern=DATASET_PATTERN, description="Name of the prompt: letters, digits, `-` and `_`")
]


@router.post("/prompts", status_code=201)
async def store_prompt(
    database: CurrentDatabase,
    settings: CurrentSettings,
    caller: CurrentCaller,
    prompt: PromptToStore,
    name: PromptToName,
    parent: Annotated[
        str | None,
        Query(
            max_length=200,
            pattern=NO_NUL,
            description="The prompt that it was made from: `NAME`, `NAME@VERSION` or its SHA-256. Without a `replaces` "
            "it replaces the same texts",
        ),
    ] = None,
) -> PromptOut:
    """Store a prompt. The body is the prompt itself.

    Evaluations, learn-loops and questions name it in `prompt`, as `NAME` (the newest version then) or `NAME@VERSION`.
    Storing the same one under the same name again has no effect.
    """
    reference = await pinned_prompt(database, settings.data_dir, parent, caller.project, ("query", "parent"))
    ancestor = await read_stored(database, caller.project, reference)
    replaces = prompt.replaces or ({} if ancestor is None else dict(ancestor.replaces))
    try:
        read = read_prompt({"parts": prompt.parts, "replaces": replaces})
    except InvalidPrompt as error:
        where = ("body",) if error.part is None else ("body", error.member, error.part)
        raise InvalidRequest(where, error.why) from error
    return await _added(database, caller, name, read, {} if reference is None else {"parent": str(reference)})


@router.post("/prompts/found", status_code=201)
async def find_prompt(
    database: CurrentDatabase,
    caller: CurrentCaller,
    name: PromptToName,
    evaluation: Annotated[
        str | None, Query(max_length=64, pattern=NO_NUL, description="Id of the evaluation whose requests are compared")
    ] = None,
    run: RunIdQuery = None,
) -> PromptFound:
    """Store the texts that an agent itself brings to its model, as a prompt.

    They are what the first requests of an evaluation's or a run's sessions have in common: the longest run of lines of
    the first system message, and of each description of a tool or an argument. The prompt replaces them by themselves.
    One that names it as its parent replaces the same texts, in requests of agents with `"prompt": "replace"`.
    """
    common = await agent_texts(database, caller, evaluation, run)
    assert common.prompt is not None  # it is refused otherwise
    origin = {"found_in": {"evaluation": evaluation} if run is None else {"run": run}}
    stored = await _added(database, caller, name, common.prompt, origin)
    return PromptFound(**stored.model_dump(), requests=common.requests, omitted=dict(common.omitted))


async def _added(
    database: Database, caller: Caller, name: str, prompt: Prompt, origin: Mapping[str, Json]
) -> PromptOut:
    """Store the prompt as the newest version of the name, and return that."""
    new = prompt_document(caller.namespace, prompt)
    row = await save_version(database, new, "prompt", name, {"author": caller.actor, **origin})
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
    return PromptStored(prompt=PromptTexts(parts=dict(prompt.parts), replaces=dict(prompt.replaces)))


@router.delete("/prompts/{sha256}")
async def delete_prompt(database: CurrentDatabase, caller: CurrentCaller, sha256: Hash) -> PromptsDeleted:
    """Delete a stored prompt of the caller's project, and all its names.

    Returns the names. A prompt that a run, an evaluation, a promotion or a release has cannot be deleted: `used_by` of
    the error names it.
    """
    return PromptsDeleted(**await delete_document(database, caller, "prompt", sha256))


def _prompt_out(row: DatasetVersion, users: Users) -> PromptOut:
    return PromptOut(**document_fields(row), used_by=users[row.sha256])
