"""Prepared data in the data directory: inboxes and question sets by the hash of their content, and their names.

`datasets/inboxes/SHA256.sqlite` and `datasets/scenarios/SHA256.json` never change. `datasets/NAME.json` lists the
versions of a name with their lineage. `datasets/builds/KEY.json` is the result for the inputs with the hash KEY.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from sqlite3 import Error
from typing import Any

from ulid import ULID

from learnloop_service.environment.email_search.environment import version_path
from learnloop_service.environment.email_search.inbox import index_anew
from learnloop_service.environment.json_type import Json

canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


class StoreError(Exception):
    """The prepared data cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a name. `scenarios` is None for an inbox without questions."""

    name: str
    version: int
    created_at: str
    inbox: dict[str, Json]
    """`sha256`, number of `emails`, and the dates of the `first` and `last` email."""
    scenarios: dict[str, Json] | None
    """`sha256`, and the number of scenarios in `train`, `validation` and `test`."""
    recipe: dict[str, Json]
    """The settings that it was prepared with."""
    sources: dict[str, Json]
    """Hash of each source's content."""
    counts: dict[str, Json]
    """How many emails and questions of the sources were used or left out."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version, and the `stages` that were run for it; the results of the other stages were reused."""

    version: Version
    stages: tuple[str, ...]


class DatasetStore:
    """The `datasets` folder of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.folder = data_dir / "datasets"

    def inbox_path(self, hash: str) -> Path:
        """Return the path of the inbox with that hash, whether or not it exists."""
        return version_path(self._data_dir, hash)

    def scenarios_path(self, hash: str) -> Path:
        """Return the path of the questions with that hash, whether or not it exists."""
        return self.folder / "scenarios" / f"{hash}.json"

    def scratch(self) -> Path:
        """Return a path for a temporary file."""
        path = self.folder / "scratch" / f"{os.getpid()}-{ULID()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def keep_inbox(self, scratch: Path, hash: str) -> None:
        """Move a finished inbox file into the store."""
        path = self.inbox_path(hash)
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.chmod(0o444)
        scratch.replace(path)

    def keep_scenarios(self, rows: Sequence[Json]) -> str:
        """Store the questions and return their hash, the same as in the table of documents."""
        text = canonical(rows)
        hash = sha256(text.encode()).hexdigest()
        if not self.scenarios_path(hash).is_file():
            self._write(self.scenarios_path(hash), text)
        return hash

    def scenarios(self, hash: str) -> list[Json]:
        """Return the questions with that hash. Raises StoreError."""
        rows: list[Json] = _read(self.scenarios_path(hash))
        return rows

    def build(self, key: str) -> dict[str, Json] | None:
        """Return the result for the inputs with that hash, or None if there is none."""
        path = self._build_path(key)
        return dict(_read(path)) if path.is_file() else None

    def keep_build(self, key: str, result: dict[str, Json]) -> None:
        """Record the result for the inputs with that hash."""
        self._write(self._build_path(key), canonical(result))

    def _build_path(self, key: str) -> Path:
        return self.folder / "builds" / f"{key}.json"

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name, oldest first; none for an unknown name. Raises StoreError."""
        path = self.folder / f"{name}.json"
        try:
            return [Version(**fields) for fields in _read(path)["versions"]] if path.is_file() else []
        except (KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged: {error}") from error

    def add_version(self, version: Version) -> Version:
        """Add a version unless the newest of its name has the same content. Returns the newest version."""
        with self._locked():
            versions = self.versions(version.name)
            if versions and (versions[-1].inbox, versions[-1].scenarios) == (version.inbox, version.scenarios):
                return versions[-1]
            added = Version(**{**asdict(version), "version": len(versions) + 1})
            text = json.dumps(
                {"versions": [asdict(stored) for stored in (*versions, added)]}, indent=1, ensure_ascii=False
            )
            self._write(self.folder / f"{version.name}.json", text)
            return added

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, path: Path, text: str) -> None:
        """Write the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.scratch()
        try:
            with scratch.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def index_inboxes_anew(data_dir: Path) -> None:
    """Index the inboxes of earlier releases anew. Inboxes that are added later are indexed when they are opened."""
    for folder in ("inboxes", "datasets/inboxes"):
        for path in sorted((data_dir / folder).glob("*.sqlite")):
            with suppress(Error):
                index_anew(path)
