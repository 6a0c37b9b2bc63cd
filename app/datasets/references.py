"""Resolves names of data in a run's environment to versions, and makes their files available on this machine.

A run keeps the versions that it started with, because its stored request contains hashes and not only names.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from learnloop_service.app.datasets import inbox_parts, rows
from learnloop_service.app.datasets.rows import Kind
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.registry import traits

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,62})(?:@(?P<version>[0-9]{1,9}))?")


_NO: Mapping[Kind, str] = {
    "inbox": "is no inbox",
    "scenarios": "is no set of scenarios",
    "demonstrations": "are no demonstrations",
    "prompt": "is no prompt",
}


class UnknownDataset(ValueError):
    """The project has no such data. `kind` is the setting that names it."""

    def __init__(self, kind: Kind, description: str) -> None:
        super().__init__(f"there {_NO[kind]} {description}")
        self.kind: Kind = kind


async def pin(database: Database, data_dir: Path, environment: Choice, project: str | None) -> Choice:
    """Replace names of inboxes and scenarios in the environment with hashes. Raises UnknownDataset.

    The name of an inbox that was imported, and not prepared or uploaded, is left unchanged.
    """
    config, datasets = dict(environment.config), traits(environment.name).datasets
    finder = _Finder(database, DatasetStore(data_dir), project)
    if "inbox" in datasets and config.get("inbox") not in (None, *datasets["inbox"]):
        inbox = await finder.inbox(config["inbox"])
        if inbox is not None:
            config["inbox"] = {"sha256": inbox.sha256, "name": inbox.name, "version": inbox.version}
            questions = await rows.questions_of(database, project, inbox) if "scenarios" not in config else None
            if questions is not None:
                config["scenarios"] = {"sha256": questions.sha256}
    if "scenarios" in datasets and isinstance(config.get("scenarios"), str):
        config["scenarios"] = {"sha256": (await finder.named("scenarios", config["scenarios"])).sha256}
    return Choice(name=environment.name, config=config)


async def make_present(database: Database, data_dir: Path, environment: Choice) -> None:
    """Write an uploaded inbox that the environment refers to by hash to the data directory, unless it is there."""
    inbox = environment.config.get("inbox")
    if (
        "inbox" in traits(environment.name).datasets
        and isinstance(inbox, dict)
        and isinstance(inbox.get("sha256"), str)
    ):
        await inbox_parts.fetch(database, DatasetStore(data_dir), inbox["sha256"])


async def demonstrations(database: Database, data_dir: Path, reference: str, project: str | None) -> DatasetVersion:
    """Return the version of the demonstrations that `NAME` or `NAME@VERSION` currently means. Raises UnknownDataset."""
    return await _Finder(database, DatasetStore(data_dir), project).named("demonstrations", reference)


async def prompt(database: Database, data_dir: Path, reference: str, project: str | None) -> DatasetVersion:
    """Return the version of the prompt that `NAME` or `NAME@VERSION` currently means. Raises UnknownDataset."""
    return await _Finder(database, DatasetStore(data_dir), project).named("prompt", reference)


class _Finder:
    """Finds a project's versions, including newly prepared ones that are not in the database yet."""

    def __init__(self, database: Database, store: DatasetStore, project: str | None) -> None:
        self._database = database
        self._store = store
        self._project = project

    async def inbox(self, reference: Json) -> DatasetVersion | None:
        """Return the version of an inbox, or None if the environment interprets the value. Raises UnknownDataset."""
        if isinstance(reference, dict) and isinstance(reference.get("sha256"), str):
            return await self._content("inbox", reference["sha256"], reference.get("name"))
        if not isinstance(reference, str) or not (parts := _NAMED.fullmatch(reference)):
            return None
        version = await self._newest("inbox", parts)
        if version is None and parts["version"]:
            raise UnknownDataset("inbox", repr(reference))
        return version

    async def named(self, kind: Kind, reference: str) -> DatasetVersion:
        """Return the version with that name. Raises UnknownDataset."""
        parts = _NAMED.fullmatch(reference)
        version = await self._newest(kind, parts) if parts else None
        if version is None:
            raise UnknownDataset(kind, repr(reference))
        return version

    async def _content(self, kind: Kind, hash: str, name: Json) -> DatasetVersion:
        for look_again in (False, True):
            if look_again:
                await rows.register_prepared(self._database, self._store)
            if (version := await rows.find_content(self._database, self._project, kind, hash, str(name))) is not None:
                return version
        raise UnknownDataset(kind, f"with the SHA-256 {hash!r}")

    async def _newest(self, kind: Kind, parts: re.Match[str]) -> DatasetVersion | None:
        # A newer version may have been prepared in the meantime.
        await rows.register_prepared(self._database, self._store)
        version = int(parts["version"]) if parts["version"] else None
        return await rows.find(self._database, self._project, kind, parts["name"], version)
