"""Inboxes and named sets of scenarios, in versions."""

import asyncio
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase, CurrentSettings
from learnloop_service.app.api.documents import Hash
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.raw_bodies import file_body
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.datasets import inbox_parts, removal, rows, upload
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.datasets.upload import BadUpload, Uploaded
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.errors import InvalidRequest, existing
from learnloop_service.app.operations.make_questions import make_questions
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.datasets import (
    InboxesDeleted,
    InboxOut,
    InboxStored,
    QuestionsRequest,
    ScenariosDeleted,
    ScenarioSetOut,
)
from learnloop_service.app.settings import Settings

router = keyed_router("documents")
_EMAIL = (
    "From: Ada <ada@acme.example>\nTo: ben@acme.example\nSubject: Venue\nMessage-ID: <1@acme.example>\n"
    "Date: Mon, 02 Mar 2026 09:00:00 +0000\n\nWe booked the Kestrel.\n"
)
_BODY = file_body(
    "An mbox file, a single email, or JSON Lines with `message_id`, `subject`, `from`, `to`, `cc`, `bcc`, `date` and "
    "`body`; not compressed. Any content type.",
    email=("A single email", _EMAIL),
)
_Name = Annotated[str, Query(pattern=DATASET_PATTERN, description="Name of the inbox: letters, digits, `-` and `_`")]
NamedOnly = Annotated[
    str | None, Query(pattern=DATASET_PATTERN, description="Only versions of this name. Default: all")
]


async def _registered(database: CurrentDatabase, settings: CurrentSettings) -> Database:
    await rows.register_prepared(database, DatasetStore(settings.data_dir))
    return database


WithPrepared = Annotated[Database, Depends(_registered)]
"""The database, to which the prepared data of the data directory was added."""


@router.post("/inboxes", status_code=201, openapi_extra=_BODY)
async def store_inbox(
    database: CurrentDatabase, settings: CurrentSettings, caller: CurrentCaller, request: Request, name: _Name
) -> InboxStored:
    """Store mail as an inbox that the email agent can search. The body is the mail itself.

    Learn-loops name it in `environment.config.inbox`, as `NAME` (the newest version then) or `NAME@VERSION`. Storing
    the same mail under the same name again has no effect.
    """
    body = await request.body()
    try:
        async with upload.imported(body, DatasetStore(settings.data_dir)) as uploaded:
            row = await _keep(database, settings, caller, name, uploaded, len(body))
            return InboxStored(
                **_common(row),
                emails=row.size,
                first=uploaded.inbox.first,
                last=uploaded.inbox.last,
                duplicates=uploaded.counts["duplicates"],
                unreadable=uploaded.counts["unreadable"],
                truncated=uploaded.counts["truncated"],
                undated=uploaded.counts["undated"],
                links={"versions": f"/inboxes?name={name}"},
            )
    except BadUpload as error:
        raise InvalidRequest(("body",), str(error)) from error


async def _keep(
    database: Database, settings: Settings, caller: Caller, name: str, uploaded: Uploaded, size: int
) -> DatasetVersion:
    """Store the file and its version in one transaction. A local copy saves fetching it from the database here."""
    inbox = uploaded.inbox
    origin = {"source": "api", "bytes": size, "counts": uploaded.counts}
    new = NewVersion(caller.namespace, "inbox", name, inbox.sha256, inbox.emails, origin=origin)
    async with database.begin() as tx:
        await inbox_parts.save(tx, uploaded.path, inbox.sha256)
        row = await rows.add(tx, new)
    await asyncio.to_thread(DatasetStore(settings.data_dir).keep_inbox, uploaded.path, inbox.sha256)
    return row


@router.post("/inboxes/{name}/questions", status_code=201)
async def make_inbox_questions(
    database: WithPrepared,
    settings: CurrentSettings,
    caller: CurrentCaller,
    name: Annotated[str, Path(pattern=DATASET_PATTERN, description="Name of the inbox")],
    request: QuestionsRequest | None = None,
) -> ScenarioSetOut:
    """Make questions about the newest version of an inbox, without a model.

    Templates ask who sent an email, on which day, and which value stands in one of its sentences. The questions are
    stored as scenarios under the inbox's name, and learn-loops about this inbox take them.
    """
    inbox = existing(await rows.find(database, caller.project, "inbox", name), "inbox", name)
    wanted = request or QuestionsRequest()
    made = await make_questions(database, settings.data_dir, inbox, caller.namespace, wanted.count, wanted.seed)
    return _scenario_set(made)


@router.get("/inboxes")
async def list_inboxes(
    database: WithPrepared, caller: CurrentCaller, paging: ById, name: NamedOnly = None
) -> Page[InboxOut]:
    """List the versions of inboxes that were uploaded or prepared, newest first."""
    found = await rows.listed(database, caller.project, "inbox", name, paging.cursor, paging.limit)
    return paging.page(found, _inbox, lambda row: row.id)


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
    found = await removal.delete_inbox(database, store, caller.namespace, name, version)
    return InboxesDeleted(deleted=[_inbox(each) for each in found])


@router.delete("/scenarios/{sha256}")
async def delete_scenarios(database: CurrentDatabase, caller: CurrentCaller, sha256: Hash) -> ScenariosDeleted:
    """Delete stored scenarios of the caller's project, and all their names.

    Returns the names. Scenarios that a run or evaluation still needs cannot be deleted: `used_by` of the error names
    them.
    """
    found = await removal.delete_documents(database, caller.namespace, "scenarios", sha256)
    return ScenariosDeleted(sha256=sha256, names=[f"{each.name}@{each.version}" for each in found])


@router.get("/scenarios")
async def list_scenarios(
    database: WithPrepared, caller: CurrentCaller, paging: ById, name: NamedOnly = None
) -> Page[ScenarioSetOut]:
    """List the versions of named sets of scenarios, newest first. Scenarios stored without a name are not listed."""
    found = await rows.listed(database, caller.project, "scenarios", name, paging.cursor, paging.limit)
    return paging.page(found, _scenario_set, lambda row: row.id)


def _common(row: DatasetVersion) -> dict[str, Any]:
    return {"name": row.name, "version": row.version, "sha256": row.sha256}


def _inbox(row: DatasetVersion) -> InboxOut:
    return InboxOut(**_common(row), emails=row.size, origin=row.origin, created_at=row.created_at)


def _scenario_set(row: DatasetVersion) -> ScenarioSetOut:
    return ScenarioSetOut(
        **_common(row),
        count=row.size,
        environment=row.environment,
        inbox_sha256=row.inbox_sha256,
        origin=row.origin,
        created_at=row.created_at,
        links={"self": f"/scenarios/{row.sha256}"},
    )
