"""Inboxes and named sets of scenarios, in versions."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase, CurrentSettings
from learnloop_service.app.api.documents import Hash
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.datasets import removal, rows
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.datasets import (
    InboxesDeleted,
    InboxOut,
    ScenariosDeleted,
    ScenarioSetOut,
)

router = keyed_router("documents")
NamedOnly = Annotated[
    str | None, Query(pattern=DATASET_PATTERN, description="Only versions of this name. Default: all")
]


async def _registered(database: CurrentDatabase, settings: CurrentSettings) -> Database:
    await rows.register_prepared(database, DatasetStore(settings.data_dir))
    return database


WithPrepared = Annotated[Database, Depends(_registered)]
"""The database, to which the prepared data of the data directory was added."""


@router.get("/inboxes")
async def list_inboxes(
    database: WithPrepared, caller: CurrentCaller, paging: ById, name: NamedOnly = None
) -> Page[InboxOut]:
    """List the versions of inboxes that were uploaded or prepared, newest first."""
    versions = await rows.listed(database, caller.project, "inbox", name, paging.cursor, paging.limit)
    return paging.page(versions, _inbox, lambda row: row.id)


@router.delete("/inboxes/{name}")
async def delete_inbox(
    database: CurrentDatabase,
    settings: CurrentSettings,
    caller: CurrentCaller,
    name: Annotated[str, Path(pattern=DATASET_PATTERN, description="Name of the inbox")],
    version: Annotated[
        int | None, Query(ge=1, lt=2**31, description="Only this version. Default: all versions of the name")
    ] = None,
) -> InboxesDeleted:
    """Delete an uploaded inbox of the caller's project, and return what was deleted.

    One that a run or evaluation still needs, or that stored scenarios are about, cannot be deleted: `used_by` of the
    error names them. Runs that have completed keep their figures, but cannot be forked or asked about it any more.
    """
    store = DatasetStore(settings.data_dir)
    deleted = await removal.delete_inbox(database, store, caller.namespace, name, version)
    return InboxesDeleted(deleted=[_inbox(row) for row in deleted])


@router.delete("/scenarios/{sha256}")
async def delete_scenarios(database: CurrentDatabase, caller: CurrentCaller, sha256: Hash) -> ScenariosDeleted:
    """Delete stored scenarios of the caller's project, and all their names.

    Returns the names. Scenarios that a run or evaluation still needs cannot be deleted: `used_by` of the error names
    them.
    """
    return ScenariosDeleted(**await delete_document(database, caller, "scenarios", sha256))


@router.get("/scenarios")
async def list_scenarios(
    database: WithPrepared, caller: CurrentCaller, paging: ById, name: NamedOnly = None
) -> Page[ScenarioSetOut]:
    """List the versions of named sets of scenarios, newest first. Scenarios stored without a name are not listed."""
    versions = await rows.listed(database, caller.project, "scenarios", name, paging.cursor, paging.limit)
    return paging.page(versions, scenario_set, lambda row: row.id)


async def delete_document(
    database: Database, caller: Caller, kind: Literal["scenarios", "demonstrations", "prompt"], sha256: str
) -> dict[str, Any]:
    """Delete a document of the caller's project with all its names, and return its hash and those."""
    deleted = await removal.delete_documents(database, caller.namespace, kind, sha256)
    return {"sha256": sha256, "names": [f"{row.name}@{row.version}" for row in deleted]}


def document_fields(row: DatasetVersion) -> dict[str, Any]:
    """Return the fields that every version of a stored document has."""
    path = "prompts" if row.kind == "prompt" else row.kind
    fields = {"count": row.size, "origin": row.origin, "created_at": row.created_at}
    return {**common_fields(row), **fields, "links": {"self": f"/{path}/{row.sha256}"}}


def common_fields(row: DatasetVersion) -> dict[str, Any]:
    """Return the fields that every version of stored data has."""
    return {"name": row.name, "version": row.version, "sha256": row.sha256}


def _inbox(row: DatasetVersion) -> InboxOut:
    return InboxOut(**common_fields(row), emails=row.size, origin=row.origin, created_at=row.created_at)


def scenario_set(row: DatasetVersion) -> ScenarioSetOut:
    """Return a version of a set of scenarios as the API shows it."""
    return ScenarioSetOut(**document_fields(row), environment=row.environment, inbox_sha256=row.inbox_sha256)
