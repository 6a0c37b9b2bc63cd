"""Uploads of mail, and questions that are made about it."""

import asyncio
from typing import Annotated

from fastapi import Path, Query, Request

from learnloop_mail.service import upload
from learnloop_mail.service.make_questions import make_questions
from learnloop_mail.service.schemas import InboxStored, QuestionsRequest
from learnloop_mail.service.upload import BadUpload, Uploaded
from learnloop_service.app.api.added_routes import AddedRoutes, AddedUpload
from learnloop_service.app.api.datasets import WithPrepared, common_fields, scenario_set
from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase, CurrentSettings
from learnloop_service.app.api.raw_bodies import file_body
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.datasets import inbox_parts, rows
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.errors import InvalidRequest, existing
from learnloop_service.app.schemas.datasets import ScenarioSetOut
from learnloop_service.app.settings import Settings

router = keyed_router("documents")
_UPLOAD = AddedUpload(
    max_bytes=lambda settings: settings.max_inbox_bytes,
    label="Upload an inbox",
    help="An mbox file, an email, or JSON Lines. It stays on this service.",
    accept=".mbox,.eml,.jsonl,.json,.txt",
    noun="email",
)
ADDED = AddedRoutes(router, uploads={"/inboxes": _UPLOAD})
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
                **common_fields(row),
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
    options = request or QuestionsRequest()
    questions = await make_questions(database, settings.data_dir, inbox, caller.namespace, options.count, options.seed)
    return scenario_set(questions)
