"""Files that people have: questions become tasks, and conversations become demonstrations and tasks."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from sqlalchemy import func, select

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.raw_bodies import file_body
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.datasets import rows
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion, Document
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.operations.import_conversations import IDS, Wanted, holds_conversations, read_conversations
from learnloop_service.app.operations.import_questions import Part, read_questions
from learnloop_service.app.operations.imported import SPLITS, Imported, NothingToImport
from learnloop_service.app.runs import documents
from learnloop_service.app.runs.documents import NewDocument
from learnloop_service.app.schemas.imports import FileImported, ImportParameters
from learnloop_service.environment.json_type import Json

router = keyed_router("documents")
_QUESTIONS = (
    "question,answer\nHow long is the warranty?,two years\nWho repairs lamps?,the workshop\nWhere is the shop?,Oslo\n"
)
_CONVERSATION = (
    '{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}], "feedback": "up", '
    '"user": "customer-4711"}\n'
)
_BODY = file_body(
    "Questions with expected answers as CSV, TSV, XLSX, JSON or JSON Lines; or conversations as JSON Lines or one "
    "JSON list, in OpenAI's form (`messages`), ShareGPT's (`conversations`), or as Langfuse and Weave export them, "
    "with what people thought of them. Any content type.",
    questions=("Questions with expected answers", _QUESTIONS),
    conversation=("A conversation that was liked", _CONVERSATION),
)
_Kind = Literal["demonstrations", "scenarios"]


@router.post(
    "/imports",
    status_code=201,
    openapi_extra=_BODY,
    responses={200: {"model": FileImported, "description": "A preview: nothing was stored."}},
)
async def import_file(
    service: CurrentService,
    caller: CurrentCaller,
    request: Request,
    response: Response,
    wanted: Annotated[ImportParameters, Query()],
) -> FileImported:
    """Make tasks of questions, or demonstrations and tasks of conversations.

    Questions become tasks of `answers`; those that are nearly the same are in the same split. Liked conversations
    become demonstrations and disliked ones tasks; all of a user are in the same split. What was not taken is counted by
    its reason. The same file again makes no new version.
    """
    body = await request.body()
    try:
        made = await asyncio.to_thread(_made, body, wanted, service.users.hash_of)
    except NothingToImport as error:
        raise InvalidRequest(("body",) if error.field is None else ("query", error.field), str(error)) from error
    contents: Mapping[_Kind, list[dict[str, Json]]] = {"demonstrations": made.demonstrations, "scenarios": made.tasks}
    new = {
        kind: await asyncio.to_thread(documents.document, caller.namespace, kind, content)
        for kind, content in contents.items()
        if content
    }
    response.status_code = 200 if wanted.preview else 201
    origin = {"source": made.kind, "bytes": len(body), "lines": made.lines, "left_out": made.reasons()}
    origin |= {key: value for key, value in made.details().items() if key not in ("rows", "base")}
    found = {} if wanted.preview else await _stored(service.database, new, wanted.name, made, origin)
    versions = {kind: _version(each, wanted.name, found.get(kind)) for kind, each in new.items()}
    tasks = versions.get("scenarios")
    return FileImported.model_validate(
        {
            "kind": made.kind,
            "lines": made.lines,
            "left_out": made.reasons(),
            "conversations": None,
            "questions": None,
            made.kind: made.details(),
            "problem": None if made.problem is None else str(made.problem),
            "demonstrations": versions.get("demonstrations"),
            "tasks": None if tasks is None else tasks | _of_tasks(made),
        }
    )


def _made(body: bytes, wanted: ImportParameters, hash_of: Callable[[str], str]) -> Imported:
    """Read the file. Raises NothingToImport."""
    if wanted.kind == "conversations" or (wanted.kind is None and holds_conversations(body)):
        how = Wanted(wanted.opinion, wanted.threshold, wanted.user, wanted.unrated)
        return read_conversations(body, how, hash_of)
    columns: Mapping[Part, str | None] = {
        "question": wanted.question, "answer": wanted.answer, "facts": wanted.facts
    }  # fmt: skip
    made = read_questions(body, columns, header=wanted.header, encoding=wanted.encoding)
    if made.problem is not None and not wanted.preview:
        raise made.problem
    return made


async def _stored(
    database: Database, new: Mapping[_Kind, NewDocument], name: str, made: Imported, origin: dict[str, Json]
) -> dict[_Kind, DatasetVersion]:
    """Store the documents, whose content they are, and their versions, in one transaction."""
    found = dict[_Kind, DatasetVersion]()
    users = {id: owner for id, owner in made.owners.items() if owner in made.users}
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
            environment = made.environment if kind == "scenarios" else ""
            version = NewVersion(each.project, kind, name, sha256, count, environment=environment, origin=origin)
            found[kind] = await rows.add(tx, version)
    return found


def _version(new: NewDocument, name: str, row: DatasetVersion | None) -> dict[str, Any]:
    """Return what is said of a document, and of its version unless it is a preview."""
    stored = {} if row is None else {"version": row.version, "count": row.size}
    return {"name": name, "version": None, **new.reference, **stored}


def _of_tasks(made: Imported) -> dict[str, Any]:
    splits = Counter(each["split"] for each in made.tasks)
    judge = "reference" if made.answered else "ruler"
    return {**{split: splits[split] for split in SPLITS}, "environment": made.environment, "judge": judge}
