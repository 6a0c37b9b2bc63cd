"""Deletes uploaded inboxes, scenarios, demonstrations and prompts that are no longer used.

Content is deleted together with its last version.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, cast, delete, func, select
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH, array
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.auth.caller import ANY_PROJECT
from learnloop_service.app.datasets.rows import Kind
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion, Document, EvaluationJob, InboxPart, Promotion, Release, Run
from learnloop_service.app.errors import Conflict, NotFound

_OPEN = ("queued", "running", "paused", "failed")
"""States in which a run or evaluation still needs its data, or can need it again."""
_SHOWN = 5
_USERS: tuple[tuple[str, type[Run | EvaluationJob], InstrumentedAttribute[str]], ...] = (
    ("runs", Run, Run.model_project),
    ("evaluations", EvaluationJob, EvaluationJob.project),
)
"""What needs data: its name in errors, its table, and the column with its project."""
_SERVED: tuple[tuple[str, type[Promotion | Release], ColumnElement[str]], ...] = (
    ("promotions", Promotion, Promotion.project + "/" + Promotion.name),
    ("releases", Release, Release.id.expression),
)
"""What serves a prompt: its name in errors, its table, and what it is called."""
Users = Mapping[str, dict[str, list[str]]]
"""What has a prompt, by its hash: ids of `runs`, `evaluations` and `releases`, and names of `promotions`."""


class InUse(Conflict):
    """The data is still in use. `used_by` has the ids of runs, evaluations and releases, and the names of sets of
    scenarios and of promotions."""

    title = "In use"

    def __init__(self, what: str, used_by: Mapping[str, Sequence[str]]) -> None:
        listed = "; ".join(
            f"{kind} {', '.join(ids[:_SHOWN])}{', ...' if len(ids) > _SHOWN else ''}"
            for kind, ids in used_by.items()
            if ids
        )
        super().__init__(f"{what} is used by {listed}.")
        self.used_by = used_by

    def members(self) -> Mapping[str, Any]:
        return {"used_by": {kind: list(ids) for kind, ids in self.used_by.items()}}


async def delete_inbox(
    database: Database, store: DatasetStore, project: str, name: str, version: int | None
) -> list[DatasetVersion]:
    """Delete one version of an uploaded inbox, or all of them, and return the deleted versions, newest first.

    Raises NotFound, InUse, or Conflict for an inbox that was prepared in the data directory.
    """
    row = DatasetVersion
    async with database.begin() as tx:
        versions = await _versions(tx, project, "inbox", row.name == name, version)
        if not versions:
            raise NotFound(f"There is no inbox {_label(name, version)!r}.")
        if any(dataset_version.origin.get("source") == "prepared" for dataset_version in versions):
            raise Conflict(f"Inbox {name} was prepared in the data directory of the service, and is not deleted here.")
        hashes = {dataset_version.sha256 for dataset_version in versions}
        others = select(row.sha256).where(
            row.kind == "inbox",
            row.sha256.in_(hashes),
            row.id.not_in([dataset_version.id for dataset_version in versions]),
        )
        last = hashes - set((await tx.execute(others)).scalars())
        used = await _users(tx, "inbox", last)
        about = (
            select(row.name).where(row.kind == "scenarios", row.inbox_sha256.in_(last)).distinct().order_by(row.name)
        )
        used["scenarios"] = list((await tx.execute(about)).scalars())
        if any(used.values()):
            raise InUse(f"Inbox {_label(name, version)}", used)
        await tx.execute(delete(row).where(row.id.in_([dataset_version.id for dataset_version in versions])))
        await tx.execute(delete(InboxPart).where(InboxPart.sha256.in_(last)))
        for dataset_version in versions:
            tx.expunge(dataset_version)
    for hash in last:
        await asyncio.to_thread(store.inbox_path(hash).unlink, missing_ok=True)
    return versions


async def delete_documents(
    database: Database, project: str, kind: Literal["scenarios", "demonstrations", "prompt"], hash: str
) -> list[DatasetVersion]:
    """Delete the project's document of that kind with that hash and all its versions.

    Returns the deleted versions, newest first. Raises NotFound or InUse.
    """
    row = DatasetVersion
    async with database.begin() as tx:
        same_document = (Document.project == project, Document.sha256 == hash, Document.kind == kind)
        if (await tx.execute(select(Document.sha256).where(*same_document))).first() is None:
            raise NotFound(f"There is no prompt {hash!r}." if kind == "prompt" else f"There are no {kind} {hash!r}.")
        versions = await _versions(tx, project, kind, row.sha256 == hash, None)
        used = await _users(tx, kind, {hash}, project)
        if any(used.values()):
            raise InUse(f"The prompt {hash}" if kind == "prompt" else f"The set of {kind} {hash}", used)
        await tx.execute(delete(row).where(row.id.in_([dataset_version.id for dataset_version in versions])))
        await tx.execute(delete(Document).where(*same_document))
        for dataset_version in versions:
            tx.expunge(dataset_version)
    return versions


async def _versions(
    tx: AsyncSession, project: str, kind: Kind, which: ColumnElement[bool], version: int | None
) -> list[DatasetVersion]:
    row = DatasetVersion
    query = select(row).where(row.project == project, row.kind == kind, which).with_for_update()
    if version is not None:
        query = query.where(row.version == version)
    return list((await tx.execute(query.order_by(row.id.desc()))).scalars())


async def _users(tx: AsyncSession, kind: Kind, hashes: set[str], project: str = ANY_PROJECT) -> dict[str, list[str]]:
    """Return the ids of runs and evaluations that still need the content, in one project or, for `*`, in all."""
    users: dict[str, list[str]] = {}
    for name, table, owner in _USERS:
        query = select(table.id).where(*_refers_to(table, kind, hashes))
        if project != ANY_PROJECT:
            query = query.where(owner == project)
        users[name] = list((await tx.execute(query.order_by(table.id))).scalars())
    return users | (await _served_with(tx, hashes, project) if kind == "prompt" else {})


async def _served_with(tx: AsyncSession, hashes: set[str], project: str) -> dict[str, list[str]]:
    """Return the names that were promoted with the prompts, and the releases of one: also past ones, so that going back
    to an older promotion brings its prompt back."""
    users: dict[str, list[str]] = {}
    for kind, table, id in _SERVED:
        query = select(id).where(table.prompt_sha256.in_(hashes)).distinct().order_by(id)
        if project != ANY_PROJECT:
            query = query.where(table.project == project)
        users[kind] = list((await tx.execute(query)).scalars())
    return users


async def users_of_prompts(database: Database, project: str | None, hashes: Iterable[str]) -> Users:
    """Return what has each of the prompts, in the project (None: in all)."""
    users = {hash: {name: list[str]() for name, *_ in (*_USERS, *_SERVED)} for hash in hashes}
    queries: list[tuple[str, Any, ColumnElement[Any], Any]] = [
        *((name, table.id, _prompts_of(table), owner) for name, table, owner in _USERS),
        *(
            (name, id, func.jsonb_build_array(table.prompt_sha256, type_=JSONB), table.project)
            for name, table, id in _SERVED
        ),
    ]
    async with database() as tx:
        for name, id, prompts, owner in queries if users else ():
            query = select(id, prompts).where(prompts.has_any(array(sorted(users)))).distinct()
            if project is not None:
                query = query.where(owner == project)
            for user, those in await tx.execute(query.order_by(id)):
                for hash in users.keys() & set(those):
                    users[hash][name].append(user)
    return users


def _refers_to(table: type[Run | EvaluationJob], kind: Kind, hashes: set[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions under which a run or an evaluation needs the content. A prompt is needed as long as there
    are figures that were made with it."""
    if kind == "prompt":
        return (_prompts_of(table).has_any(array(sorted(hashes))),)
    holder = table.request["warm_start"] if kind == "demonstrations" else table.request["environment"]["config"]
    return table.status.in_(_OPEN), holder[kind]["sha256"].astext.in_(hashes)


def _prompts_of(table: type[Run | EvaluationJob]) -> ColumnElement[Any]:
    """Return the hashes of the prompts that a run or an evaluation has, as a list."""
    path = "$.prompt.sha256" if table is Run else "$.models[*].prompt.sha256"
    return func.jsonb_path_query_array(table.request, cast(path, JSONPATH), type_=JSONB)


def _label(name: str, version: int | None) -> str:
    return name if version is None else f"{name}@{version}"
