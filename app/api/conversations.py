"""Conversations that exist already: what was liked becomes demonstrations, what was disliked becomes tasks."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from sqlalchemy import func, select

from app.api.dependencies import NO_NUL, CurrentCaller, CurrentService
from app.api.routers import keyed_router
from app.datasets import rows
from app.datasets.conversation_opinions import NoThreshold
from app.datasets.rows import NewVersion
from app.db.database import Database
from app.db.tables import DatasetVersion, Document
from app.domain.names import DATASET_PATTERN
from app.errors import InvalidRequest
from app.operations.import_conversations import (
    ENVIRONMENTS,
    IDS,
    Imported,
    NoConversations,
    Unrated,
    Wanted,
    read_conversations,
)
from app.runs import documents
from app.runs.documents import NewDocument
from app.schemas.conversations import ConversationsImported, ImportedDemonstrations, ImportedTasks, LeftOut
from environment.json_type import Json

router = keyed_router("documents")
_BODY = {
    "description": "JSON Lines, or one JSON list: conversations in OpenAI's form (`messages`), ShareGPT's "
    "(`conversations`), or as Langfuse and Weave export them, with what people thought of them. Any content type.",
    "required": True,
    "content": {
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary"},
            "examples": {
                "conversation": {
                    "summary": "A conversation that was liked",
                    "value": '{"messages": [{"role": "user", "content": "ping"}, '
                    '{"role": "assistant", "content": "pong"}], "feedback": "up", "user": "customer-4711"}\n',
                }
            },
        }
    },
}
_Kind = Literal["demonstrations", "scenarios"]
_Field = Annotated[str | None, Query(min_length=1, max_length=200, pattern=NO_NUL)]


@router.post("/conversations", status_code=201, openapi_extra={"requestBody": _BODY})
async def import_conversations(
    service: CurrentService,
    caller: CurrentCaller,
    request: Request,
    name: Annotated[
        str, Query(pattern=DATASET_PATTERN, description="Name of what they become: letters, digits, `-` and `_`")
    ],
    opinion: Annotated[_Field, Query(description="Name of the field or score that counts. Default: all known")] = None,
    threshold: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Least number of a conversation that was liked. Default: thumbs only"),
    ] = None,
    user: Annotated[_Field, Query(description="Name of the field with the user's key. Default: the usual ones")] = None,
    unrated: Annotated[Unrated, Query(description="What becomes of conversations without an opinion")] = "leave_out",
) -> ConversationsImported:
    """Make demonstrations of liked conversations, and tasks of disliked ones.

    All conversations of a user are in the same split. What was not taken is counted by its reason. The same file again
    makes no new version.
    """
    body, wanted = await request.body(), Wanted(opinion, threshold, user, unrated)
    try:
        made = await asyncio.to_thread(read_conversations, body, wanted, service.users.hash_of)
    except NoThreshold as error:
        raise InvalidRequest(("query", "threshold"), str(error)) from error
    except NoConversations as error:
        raise InvalidRequest(("body",), str(error)) from error
    origin = {"source": "conversations", "bytes": len(body), **_counts(made), "left_out": made.reasons()}
    contents: Mapping[_Kind, list[dict[str, Json]]] = {"demonstrations": made.demonstrations, "scenarios": made.tasks}
    new = {
        kind: await asyncio.to_thread(documents.document, caller.namespace, kind, content)
        for kind, content in contents.items()
        if content
    }
    users = {id: owner for id, owner in made.owners.items() if owner in made.users}
    found = await _stored(service.database, new, name, users, origin)
    learned, tasks = found.get("demonstrations"), found.get("scenarios")
    return ConversationsImported(
        **_counts(made),
        demonstrations=None if learned is None else ImportedDemonstrations(**_version(learned)),
        tasks=None if tasks is None else _tasks(tasks, made.tasks),
        left_out=[LeftOut(**each) for each in made.reasons()],
    )


async def _stored(
    database: Database, new: Mapping[_Kind, NewDocument], name: str, users: Mapping[str, str], origin: dict[str, Json]
) -> dict[_Kind, DatasetVersion]:
    """Store the documents, whose content they are, and their versions, in one transaction."""
    found = dict[_Kind, DatasetVersion]()
    async with database.begin() as tx:
        for kind, each in new.items():
            prefix = IDS[kind]
            await documents.save_of_users(tx, each, {id: user for id, user in users.items() if id.startswith(prefix)})
            sha256 = str(each.reference["sha256"])
            # The deletion of a user can have left less than the file has.
            left = select(func.jsonb_array_length(Document.content)).where(
                Document.project == each.project, Document.sha256 == sha256
            )
            count = (await tx.execute(left)).scalar_one()
            environment = ENVIRONMENTS[kind]
            version = NewVersion(each.project, kind, name, sha256, count, environment=environment, origin=origin)
            found[kind] = await rows.add(tx, version)
    return found


def _counts(made: Imported) -> dict[str, Any]:
    return {
        "lines": made.lines,
        "conversations": made.forms.total(),
        "forms": dict(made.forms),
        "users": len(made.users),
        "without_user": made.without_user,
        **{kind: made.opinions[kind] for kind in ("liked", "disliked", "unrated")},
    }


def _version(row: DatasetVersion) -> dict[str, Any]:
    return {"name": row.name, "version": row.version, "sha256": row.sha256, "count": row.size}


def _tasks(row: DatasetVersion, tasks: Sequence[dict[str, Json]]) -> ImportedTasks:
    splits = Counter(each["split"] for each in tasks)
    answered = all("answer" in each["reference"] for each in tasks)
    return ImportedTasks(
        **_version(row),
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        judge="reference" if answered else "ruler",
    )
