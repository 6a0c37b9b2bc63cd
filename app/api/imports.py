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
from learnloop_service.app.datasets import documents, rows
from learnloop_service.app.datasets.documents import NewDocument
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion, Document
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.operations.import_conversations import IDS, Wanted, holds_conversations, read_conversations
from learnloop_service.app.operations.import_questions import Part, read_questions
from learnloop_service.app.operations.imported import SPLITS, Imported, NothingToImport
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
    parameters: Annotated[ImportParameters, Query()],
) -> FileImported:
    """Make tasks of questions, or demonstrations and tasks of conversations.

    Questions become tasks of `answers`; those that are nearly the same are in the same split. Liked conversations
    become demonstrations and disliked ones tasks; all of a user are in the same split. What was not taken is counted by
    its reason. The same file again makes no new version.
    """
    body = await request.body()
    try:
        imported = await asyncio.to_thread(_read, body, parameters, service.users.hash_of)
    except NothingToImport as error:
        raise InvalidRequest(("body",) if error.field is None else ("query", error.field), str(error)) from error
    contents: Mapping[_Kind, list[dict[str, Json]]] = {
        "demonstrations": imported.demonstrations,
        "scenarios": imported.tasks,
    }
    new = {
        kind: await asyncio.to_thread(documents.document, caller.namespace, kind, content)
        for kind, content in contents.items()
        if content
    }
    response.status_code = 200 if parameters.preview else 201
    origin = {"source": imported.kind, "bytes": len(body), "lines": imported.lines, "left_out": imported.reasons()}
    origin |= {key: value for key, value in imported.details().items() if key not in ("rows", "base")}
    stored = {} if parameters.preview else await _stored(service.database, new, parameters.name, imported, origin)
    versions = {kind: _version(document, parameters.name, stored.get(kind)) for kind, document in new.items()}
    tasks = versions.get("scenarios")
    return FileImported.model_validate(
        {
            "kind": imported.kind,
            "lines": imported.lines,
            "left_out": imported.reasons(),
            "conversations": None,
            "questions": None,
            imported.kind: imported.details(),
            "problem": None if imported.problem is None else str(imported.problem),
            "demonstrations": versions.get("demonstrations"),
            "tasks": None if tasks is None else tasks | _of_tasks(imported),
        }
    )


def _read(body: bytes, parameters: ImportParameters, hash_of: Callable[[str], str]) -> Imported:
    """Read the file. Raises NothingToImport."""
    if parameters.kind == "conversations" or (parameters.kind is None and holds_conversations(body)):
        how = Wanted(parameters.opinion, parameters.threshold, parameters.user, parameters.unrated)
        return read_conversations(body, how, hash_of)
    columns: Mapping[Part, str | None] = {
        "question": parameters.question, "answer": parameters.answer, "facts": parameters.facts
    }  # fmt: skip
    questions = read_questions(body, columns, header=parameters.header, encoding=parameters.encoding)
    if questions.problem is not None and not parameters.preview:
        raise questions.problem
    return questions


async def _stored(
    database: Database, new: Mapping[_Kind, NewDocument], name: str, imported: Imported, origin: dict[str, Json]
) -> dict[_Kind, DatasetVersion]:
    """Store the documents and a version of each under `name`, in one transaction, and return the versions."""
    versions = dict[_Kind, DatasetVersion]()
    users = {id: owner for id, owner in imported.owners.items() if owner in imported.users}
    async with database.begin() as tx:
        for kind, document in new.items():
            prefix = IDS[kind]
            await documents.save_of_users(
                tx, document, {id: user for id, user in users.items() if id.startswith(prefix)}
            )
            sha256 = str(document.reference["sha256"])
            # The deletion of a user can have left less than the file has.
            size = select(func.jsonb_array_length(Document.content)).where(
                Document.project == document.project, Document.sha256 == sha256
            )
            count = (await tx.execute(size)).scalar_one()
            environment = imported.environment if kind == "scenarios" else ""
            version = NewVersion(document.project, kind, name, sha256, count, environment=environment, origin=origin)
            versions[kind] = await rows.add(tx, version)
    return versions


def _version(new: NewDocument, name: str, row: DatasetVersion | None) -> dict[str, Any]:
    """Return what is said of a document, and of its version unless it is a preview."""
    stored = {} if row is None else {"version": row.version, "count": row.size}
    return {"name": name, "version": None, **new.reference, **stored}


def _of_tasks(imported: Imported) -> dict[str, Any]:
    splits = Counter(task["split"] for task in imported.tasks)
    judge = "reference" if imported.answered else "ruler"
    return {**{split: splits[split] for split in SPLITS}, "environment": imported.environment, "judge": judge}
