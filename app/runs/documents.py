"""Graphs, sets of scenarios and demonstrations that requests bring: each is stored once a project, by the hash of its
canonical JSON.

What a caller of all projects stores (its project is `*`) all projects may use; else a project finds only its own.
The first two lie in the environment's config, which is a run's JSON column: there a reference stands in their place,
as everybody who watches a run reads that column.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

from sqlalchemy import Text, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.auth.caller import ANY_PROJECT
from app.datasets.references import make_present
from app.db.database import Database
from app.db.tables import Document
from app.domain.stored_request import Choice
from environment.json_type import Json
from environment.registry import documents as environment_documents

Kind = Literal["graph", "scenarios", "demonstrations"]
KINDS: Sequence[Kind] = ("graph", "scenarios")
"""Those that settings of an environment hold, which are called so."""
_canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


class UnknownDocument(ValueError):
    """Nothing of that kind is stored under that hash for the project that asks."""

    def __init__(self, kind: Kind, hash: str) -> None:
        super().__init__(f"no stored {kind} has the SHA-256 {hash!r}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document on its way to the database; `reference` stands for it elsewhere."""

    project: str
    kind: Kind
    text: str
    reference: Mapping[str, Json]


def document(project: str, kind: Kind, content: Sequence[Json]) -> NewDocument:
    """Raises ValueError for what is no JSON (NaN). Takes a while for a big graph: not for the event loop."""
    # Item by item, so that other threads get their turn.
    text = f"[{','.join(_canonical(item) for item in content)}]"
    hash = sha256(text.encode()).hexdigest()
    return NewDocument(project, kind, text, {"sha256": hash, **_size(kind, content)})


def _size(kind: Kind, content: Sequence[Json]) -> Mapping[str, int]:
    if kind in ("scenarios", "demonstrations"):
        return {"count": len(content)}
    _, of_environment = environment_documents()[kind]
    return of_environment.size(content)


async def save(tx: AsyncSession, documents: Iterable[NewDocument]) -> None:
    """Store them in the session's transaction; what is there already stays."""
    for each in documents:
        content = cast(literal(each.text, Text), JSONB)
        row = insert(Document).values(
            project=each.project, sha256=each.reference["sha256"], kind=each.kind, content=content
        )
        await tx.execute(row.on_conflict_do_nothing())


async def stored_text(database: Database, project: str | None, kind: Kind, hash: str) -> str:
    """The JSON text of a stored document that the project, or with None any, may use. Raises UnknownDocument."""
    query = select(cast(Document.content, Text)).where(Document.sha256 == hash, Document.kind == kind).limit(1)
    if project is not None:
        query = query.where(Document.project.in_((project, ANY_PROJECT)))
    async with database() as tx:
        text = (await tx.execute(query)).scalar_one_or_none()
    if text is None:
        raise UnknownDocument(kind, hash)
    return text


async def listed(
    database: Database, project: str | None, kind: Kind, limit: int
) -> Sequence[tuple[str, int, datetime]]:
    """Hash, stored bytes and time of the documents that the project, or with None any, may use; newest first."""
    size = func.pg_column_size(Document.content)
    query = select(Document.sha256, func.max(size), func.max(Document.created_at)).where(Document.kind == kind)
    if project is not None:
        query = query.where(Document.project.in_((project, ANY_PROJECT)))
    newest = query.group_by(Document.sha256).order_by(func.max(Document.created_at).desc()).limit(limit)
    async with database() as tx:
        return [(sha256, stored, created_at) for sha256, stored, created_at in await tx.execute(newest)]


async def resolve_references(database: Database, data_dir: Path, environment: Choice, project: str | None) -> Choice:
    """The environment with documents in place of the references in its config. Raises UnknownDocument.

    Only documents that the project may use are found; None: any. An inbox that it refers to is put into the data
    directory.
    """
    await make_present(database, data_dir, environment)
    config = dict(environment.config)
    for kind, hash in _references(config):
        config[kind] = await asyncio.to_thread(json.loads, await stored_text(database, project, kind, hash))
    return Choice(name=environment.name, config=config)


def extract_documents(environment: Choice, resolved: Choice, project: str) -> tuple[Choice, list[NewDocument]]:
    """The environment with references in place of documents, and those that are new.

    `resolved` is what `resolve_references` returned for it. Raises ValueError for what is no JSON.
    """
    config, contents = dict(environment.config), resolved.config
    for kind, hash in list(_references(config)):
        config[kind] = {"sha256": hash, **_size(kind, contents[kind])}
    new = [document(project, kind, contents[kind]) for kind in KINDS if isinstance(config.get(kind), list)]
    config.update((each.kind, dict(each.reference)) for each in new)
    return Choice(name=environment.name, config=config), new


def reference(environment: Choice, kind: Kind) -> str | None:
    """The hash of the document that the environment's config refers to; None if it refers to none of that kind."""
    return dict(_references(environment.config)).get(kind)


def _references(config: Mapping[str, Json]) -> Iterator[tuple[Kind, str]]:
    for kind in KINDS:
        value = config.get(kind)
        if isinstance(value, dict) and isinstance(value.get("sha256"), str):
            yield kind, value["sha256"]
