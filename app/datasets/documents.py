"""Stores graphs, scenario sets and demonstrations from requests, once per project, by the hash of their canonical JSON.

A project can use its own documents, and those that a caller of all projects (project `*`) stores. Graphs and scenario
sets are part of the environment's config, which is in a JSON column of the run. References replace them there, because
everyone who watches a run loads that column.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

from sqlalchemy import ColumnElement, Text, cast, func, literal, literal_column, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.auth.caller import ANY_PROJECT
from learnloop_service.app.datasets import rows
from learnloop_service.app.datasets.references import make_present
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.db.tables import DatasetVersion, Document, UserScenario
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.registry import document as environment_document

Kind = Literal["graph", "scenarios", "demonstrations", "prompt", "served"]
KINDS: Sequence[Kind] = ("graph", "scenarios")
"""Kinds of documents that are settings of an environment, with the same names."""
_VERSION = literal_column(f"{Document.__tablename__}.xmin::text", Text)
"""Id of the transaction that wrote the row."""


class UnknownDocument(ValueError):
    """Raised when the project has no stored document with that kind and hash."""

    def __init__(self, kind: Kind, hash: str) -> None:
        super().__init__(f"no stored {kind} has the SHA-256 {hash!r}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document to be saved. `reference` replaces it elsewhere."""

    project: str
    kind: Kind
    text: str
    reference: Mapping[str, Json]


def document(project: str, kind: Kind, content: Sequence[Json]) -> NewDocument:
    """Serialize a document. Slow for a big graph, so not for the event loop. Raises ValueError for NaN."""
    # Item by item, so that other threads can run in between.
    text = f"[{','.join(canonical(item) for item in content)}]"
    hash = sha256(text.encode()).hexdigest()
    return NewDocument(project, kind, text, {"sha256": hash, **_size(kind, content)})


def _size(kind: Kind, content: Sequence[Json]) -> Mapping[str, int]:
    if kind in ("scenarios", "demonstrations", "served"):
        return {"count": len(content)}
    _, of_environment = environment_document(kind)
    return of_environment.size(content)


async def save(tx: AsyncSession, documents: Iterable[NewDocument]) -> None:
    """Save documents in the caller's transaction. Those that are already stored stay as they are."""
    for new_document in documents:
        content = cast(literal(new_document.text, Text), JSONB)
        row = insert(Document).values(
            project=new_document.project,
            sha256=new_document.reference["sha256"],
            kind=new_document.kind,
            content=content,
        )
        await tx.execute(row.on_conflict_do_nothing())


async def save_of_users(tx: AsyncSession, scenarios: NewDocument, users: Mapping[str, str]) -> None:
    """Save scenarios that were made from what users asked. `users` has the hash of the user by scenario id."""
    await save(tx, [scenarios])
    same = {"project": scenarios.project, "sha256": scenarios.reference["sha256"]}
    rows = [{**same, "scenario_id": id, "user_hash": user} for id, user in users.items()]
    if rows:
        await tx.execute(insert(UserScenario).on_conflict_do_nothing(), rows)


async def save_version(
    database: Database,
    new: NewDocument,
    kind: Literal["demonstrations", "prompt"],
    name: str,
    origin: Mapping[str, Json],
    users: Mapping[str, str] | None = None,
) -> DatasetVersion:
    """Save a document under a name. `users` has the hash of the user by id, for one made from what users asked."""
    sha256, count = str(new.reference["sha256"]), int(new.reference["count"])
    version = NewVersion(new.project, kind, name, sha256, count, environment="", origin=origin)
    async with database.begin() as tx:
        await save_of_users(tx, new, users or {})
        return await rows.add(tx, version)


async def users_of(tx: AsyncSession, project: str, hash: str | None) -> dict[str, str]:
    """Return the hash of the user by scenario id, of a set that the project can use and that was made from requests."""
    query = select(UserScenario.scenario_id, UserScenario.user_hash).where(
        UserScenario.sha256 == hash, UserScenario.project.in_((project, ANY_PROJECT))
    )
    return {row.scenario_id: row.user_hash for row in await tx.execute(query)}


async def stored_text(
    database: Database, project: str | None, kind: Kind, hash: str, version: str | None = None
) -> str:
    """Return the JSON text of a document that the project (None: any) can use. Raises UnknownDocument, also if the
    version is no longer the given one."""
    return await _of_document(database, cast(Document.content, Text), project, kind, hash, version)


async def version_of(database: Database, project: str | None, kind: Kind, hash: str) -> str:
    """Return the version of a document, which changes when a user is deleted from it. Raises UnknownDocument."""
    return await _of_document(database, _VERSION, project, kind, hash)


async def _of_document(
    database: Database,
    column: ColumnElement[str],
    project: str | None,
    kind: Kind,
    hash: str,
    version: str | None = None,
) -> str:
    query = select(column).where(Document.sha256 == hash, Document.kind == kind).limit(1)
    if version is not None:
        query = query.where(_VERSION.in_((version,)))
    if project is not None:
        query = query.where(Document.project.in_((project, ANY_PROJECT)))
    async with database() as tx:
        selected = (await tx.execute(query)).scalar_one_or_none()
    if selected is None:
        raise UnknownDocument(kind, hash)
    return selected


async def listed(
    database: Database, project: str | None, kind: Kind, limit: int
) -> Sequence[tuple[str, int, datetime]]:
    """Return hash, stored bytes and time of the documents that the project (None: any) can use, newest first."""
    size = func.pg_column_size(Document.content)
    query = select(Document.sha256, func.max(size), func.max(Document.created_at)).where(Document.kind == kind)
    if project is not None:
        query = query.where(Document.project.in_((project, ANY_PROJECT)))
    newest = query.group_by(Document.sha256).order_by(func.max(Document.created_at).desc()).limit(limit)
    async with database() as tx:
        return [(sha256, stored, created_at) for sha256, stored, created_at in await tx.execute(newest)]


async def resolve_references(database: Database, data_dir: Path, environment: Choice, project: str | None) -> Choice:
    """Replace the references in the environment's config with documents. Raises UnknownDocument.

    Only documents that the project (None: any) can use are found. An inbox that the config refers to is put into the
    data directory.
    """
    await make_present(database, data_dir, environment)
    config = dict(environment.config)
    for kind, hash in _references(config):
        config[kind] = await asyncio.to_thread(json.loads, await stored_text(database, project, kind, hash))
    return Choice(name=environment.name, config=config)


def extract_documents(environment: Choice, resolved: Choice, project: str) -> tuple[Choice, list[NewDocument]]:
    """Replace the documents in the environment's config with references. Also returns the documents that are new.

    `resolved` is what `resolve_references` returned for it. Raises ValueError for NaN.
    """
    config, contents = dict(environment.config), resolved.config
    for kind, hash in list(_references(config)):
        config[kind] = {"sha256": hash, **_size(kind, contents[kind])}
    new = [document(project, kind, contents[kind]) for kind in KINDS if isinstance(config.get(kind), list)]
    config.update((new_document.kind, dict(new_document.reference)) for new_document in new)
    return Choice(name=environment.name, config=config), new


def reference(environment: Choice, kind: Kind) -> str | None:
    """Return the hash of the document of that kind that the environment's config refers to, if any."""
    return dict(_references(environment.config)).get(kind)


def _references(config: Mapping[str, Json]) -> Iterator[tuple[Kind, str]]:
    for kind in KINDS:
        value = config.get(kind)
        if isinstance(value, dict) and isinstance(value.get("sha256"), str):
            yield kind, value["sha256"]
