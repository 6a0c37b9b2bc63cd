"""Versions of inboxes, scenarios, demonstrations and prompts in the database: adds, lists and finds them.

A project sees its own versions and those of all projects (`*`), and its own take precedence.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import structlog
from sqlalchemy import Text, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.auth.caller import ANY_PROJECT
from learnloop_service.app.datasets.hub import is_hub_id
from learnloop_service.app.datasets.store import DatasetStore, StoreError, Version, canonical
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import DatasetVersion, Document
from learnloop_service.environment.json_type import Json

log = structlog.get_logger(__name__)
Kind = Literal["inbox", "scenarios", "demonstrations", "prompt"]
_EMAIL_SEARCH = "email_search"


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to add to the database."""

    project: str
    kind: Kind
    name: str
    sha256: str
    size: int
    environment: str = _EMAIL_SEARCH
    inbox_sha256: str | None = None
    origin: Mapping[str, Json] = field(default_factory=dict)


async def add(tx: AsyncSession, new: NewVersion) -> DatasetVersion:
    """Add a version with the next number, or return the newest version of the name if it has the same content."""
    lock = int.from_bytes(sha256(f"{new.project} {new.kind} {new.name}".encode()).digest()[:8], signed=True)
    await tx.execute(select(func.pg_advisory_xact_lock(lock)))
    query = (
        select(DatasetVersion)
        .where(DatasetVersion.project == new.project, DatasetVersion.kind == new.kind, DatasetVersion.name == new.name)
        .order_by(DatasetVersion.version.desc())
        .limit(1)
    )
    newest = (await tx.execute(query)).scalar_one_or_none()
    if newest is not None and (newest.sha256, newest.inbox_sha256) == (new.sha256, new.inbox_sha256):
        return newest
    row = _row(new, version=newest.version + 1 if newest else 1)
    tx.add(row)
    await tx.flush()
    await tx.refresh(row)
    return row


def _row(new: NewVersion, version: int) -> DatasetVersion:
    return DatasetVersion(id=str(ULID()), version=version, **asdict(new))


async def listed(
    database: Database, project: str | None, kind: Kind, name: str | None, cursor: str | None, limit: int
) -> Sequence[DatasetVersion]:
    """Return versions, newest first; one more than `limit` if there are more."""
    query = select(DatasetVersion).where(DatasetVersion.kind == kind)
    if project is not None:
        query = query.where(DatasetVersion.project.in_((project, ANY_PROJECT)))
    query = newest_first(query, DatasetVersion.id, cursor, limit + 1, (DatasetVersion.name, name))
    async with database() as tx:
        return (await tx.execute(query)).scalars().all()


async def find(
    database: Database, project: str | None, kind: Kind, name: str, version: int | None = None
) -> DatasetVersion | None:
    """Return the given or the newest version of the name, or None."""
    query = select(DatasetVersion).where(DatasetVersion.kind == kind, DatasetVersion.name == name)
    if version is not None:
        query = query.where(DatasetVersion.version == version)
    return await _first(database, project, query)


async def find_content(
    database: Database, project: str | None, kind: Kind, hash: str, name: str
) -> DatasetVersion | None:
    """Return a version with that content, preferably under that name."""
    query = select(DatasetVersion).where(DatasetVersion.kind == kind, DatasetVersion.sha256 == hash)
    query = query.order_by((DatasetVersion.name == name).desc())
    return await _first(database, project, query)


async def questions_of(database: Database, project: str | None, inbox: DatasetVersion) -> DatasetVersion | None:
    """Return the newest scenarios under the inbox's name that are about this version of it."""
    query = select(DatasetVersion).where(
        DatasetVersion.kind == "scenarios",
        DatasetVersion.name == inbox.name,
        DatasetVersion.inbox_sha256 == inbox.sha256,
    )
    return await _first(database, project, query)


async def _first(database: Database, project: str | None, query: Any) -> DatasetVersion | None:
    if project is not None:
        query = query.where(DatasetVersion.project.in_((project, ANY_PROJECT)))
    own_first = (DatasetVersion.project == ANY_PROJECT).asc()
    async with database() as tx:
        result = await tx.execute(query.order_by(own_first, DatasetVersion.version.desc()).limit(1))
        row: DatasetVersion | None = result.scalar_one_or_none()
        return row


async def register_prepared(database: Database, store: DatasetStore) -> None:
    """Add data prepared in the data directory to the database, for all projects."""
    prepared = await asyncio.to_thread(_prepared, store)
    async with database() as tx:
        query = select(DatasetVersion.name, DatasetVersion.version).where(
            DatasetVersion.project == ANY_PROJECT, DatasetVersion.kind == "inbox"
        )
        registered = {(name, version) for name, version in await tx.execute(query)}
    for dataset in prepared:
        if (dataset.name, dataset.version) not in registered:
            await _register(database, store, dataset)


def _prepared(store: DatasetStore) -> list[Version]:
    versions: list[Version] = []
    for name in store.names():
        try:
            versions += store.versions(name)
        except StoreError as error:
            log.warning("prepared data left out", error=str(error))
    return versions


def _without_folders(version: Version) -> dict[str, Json]:
    """Return settings and sources with file names instead of paths, because all projects can see them."""

    def without_folder(source: Json) -> Json:
        if isinstance(source, list):
            return list(map(without_folder, source))
        return source if not isinstance(source, str) or is_hub_id(source) else Path(source).name

    recipe = {
        key: without_folder(value) if key in ("emails", "questions") else value for key, value in version.recipe.items()
    }
    return {"recipe": recipe, "sources": {without_folder(source): hash for source, hash in version.sources.items()}}


async def _register(database: Database, store: DatasetStore, version: Version) -> None:
    origin = {"source": "prepared", "counts": version.counts, **_without_folders(version)}
    inbox = NewVersion(
        ANY_PROJECT, "inbox", version.name, version.inbox["sha256"], version.inbox["emails"], origin=origin
    )
    new = [inbox]
    text = None
    if version.scenarios is not None:
        hash = version.scenarios["sha256"]
        rows = await asyncio.to_thread(store.scenarios, hash)
        text = await asyncio.to_thread(canonical, rows)
        about = inbox.sha256
        new.append(
            NewVersion(ANY_PROJECT, "scenarios", version.name, hash, len(rows), inbox_sha256=about, origin=origin)
        )
    async with database.begin() as tx:
        if text is not None:
            document = insert(Document).values(
                project=ANY_PROJECT, sha256=new[1].sha256, kind="scenarios", content=cast(literal(text, Text), JSONB)
            )
            await tx.execute(document.on_conflict_do_nothing())
        for new_version in new:
            row = _row(new_version, version.version)
            values = {column.key: getattr(row, column.key) for column in DatasetVersion.__table__.columns}
            del values["created_at"]
            await tx.execute(insert(DatasetVersion).values(values).on_conflict_do_nothing())
