"""Checkpoints on disk: written beside their place and renamed, so one is whole or absent; checked by hash when read.

A checkpoint is a directory `<step, six digits>` in Hugging Face layout (of an adapter: in peft's) with a
`manifest.json`. Files of the optimizer are listed apart: they may be removed from old checkpoints.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

MANIFEST_FILE = "manifest.json"
OPTIMIZER_FILE = "optimizer.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
_UNFINISHED = ".unfinished-"
_THREADS = 8


class CorruptCheckpoint(Exception):
    """Files of a checkpoint are missing or differ from its manifest."""


class CheckpointNotWritten(Exception):
    """The checkpoint could not be saved; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size in bytes and hex SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says of itself. `parent` is the checkpoint it was trained or copied from, `name@step`."""

    step: int
    model: str
    base_model: str
    parent: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: str = ""
    """RFC 3339, UTC."""
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    optimizer_files: Mapping[str, FileDigest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was found on disk."""

    directory: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The policy's step."""
        return self.manifest.step

    def verify(self) -> None:
        """Compare all files with the manifest. Raises CorruptCheckpoint."""
        for name, digest in self.manifest.files.items():
            _compare(self.directory / name, digest)
        for name, digest in self.manifest.optimizer_files.items():
            if (self.directory / name).exists():
                _compare(self.directory / name, digest)


def write(
    parent: Path,
    manifest: Manifest,
    fill: Callable[[Path], None],
    keep: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Checkpoint:
    """Make the checkpoint `parent/<step>` of what `fill(directory)` writes. Raises CheckpointNotWritten.

    When it returns, the checkpoint survives a power cut. `keep` gets it whole, before it is in its place: if that
    raises, there is none.
    """
    parent.mkdir(parents=True, exist_ok=True)
    unfinished = parent / f"{_UNFINISHED}{manifest.step:06d}-{secrets.token_hex(4)}"
    place = parent / f"{manifest.step:06d}"
    try:
        unfinished.mkdir()
        fill(unfinished)
        complete = _seal(unfinished, manifest)
        keep(Checkpoint(unfinished, complete))
        unfinished.rename(place)
        _sync(parent)
    except (OSError, SafetensorError) as error:  # safetensors tells of a full disk with an error of its own
        shutil.rmtree(unfinished, ignore_errors=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointNotWritten(f"checkpoint {manifest.step} could not be written: {why}") from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return Checkpoint(place, complete)


def receive(parent: Path, manifest: Manifest, fill: Callable[[Path], None]) -> Checkpoint:
    """Put a checkpoint at its place whose files, as `fill(directory)` writes them, match the manifest, in place of one
    that may be there. Raises CorruptCheckpoint if they do not match, CheckpointNotWritten if the disk refuses."""
    place = parent / f"{manifest.step:06d}"
    unfinished = parent / f"{_UNFINISHED}{manifest.step:06d}-{secrets.token_hex(4)}"
    try:
        unfinished.mkdir(parents=True)
        fill(unfinished)
        Checkpoint(unfinished, manifest).verify()
        (unfinished / MANIFEST_FILE).write_text(to_json(manifest))
        if place.exists():
            set_aside(place)
        unfinished.rename(place)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint {manifest.step} could not be written: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Checkpoint(place, manifest)


def scan(parent: Path) -> tuple[dict[int, Checkpoint], list[Path]]:
    """The checkpoints below `parent` by step, and the corrupt ones, which were renamed to `<step>.torn`.

    Only what costs nothing is checked: the manifest and the sizes of the files. What a killed process left
    unfinished is removed.
    """
    found: dict[int, Checkpoint] = {}
    corrupt: list[Path] = []
    for directory in sorted(parent.iterdir()) if parent.is_dir() else []:
        if directory.name.startswith(_UNFINISHED):
            shutil.rmtree(directory, ignore_errors=True)
        elif directory.name.isdecimal():
            try:
                checkpoint = _read(directory)
            except CorruptCheckpoint:
                corrupt.append(set_aside(directory))
            else:
                found[checkpoint.step] = checkpoint
    return found, corrupt


def remove(directory: Path) -> None:
    """Delete a checkpoint, if it is there; cut short, it is gone all the same, and a scan removes what is left."""
    tombstone = directory.with_name(f"{_UNFINISHED}deleted-{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        shutil.rmtree(directory.rename(tombstone), ignore_errors=True)


def set_aside(directory: Path) -> Path:
    """Rename a corrupt checkpoint so that it is not seen again, yet kept for a look at it; its new place."""
    place = directory.with_name(f"{directory.name}.torn")
    if place.exists():
        place = directory.with_name(f"{directory.name}-{secrets.token_hex(4)}.torn")
    with suppress(FileNotFoundError):  # all of it is gone
        directory.rename(place)
    return place


def _read(directory: Path) -> Checkpoint:
    try:
        manifest = from_json(json.loads((directory / MANIFEST_FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{directory.name} has no readable manifest: {error}") from error
    if directory.name != f"{manifest.step:06d}":
        raise CorruptCheckpoint(f"{directory.name} holds the manifest of step {manifest.step}")
    for name, digest in manifest.files.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != digest.bytes:
            raise CorruptCheckpoint(f"{name} is missing or has another size than the manifest says")
    return Checkpoint(directory, manifest)


def _compare(path: Path, expected: FileDigest) -> None:
    try:
        digest = _digest(path)
    except OSError as error:
        raise CorruptCheckpoint(f"{path.name} of checkpoint {path.parent.name} cannot be read") from error
    if digest != expected:
        raise CorruptCheckpoint(f"{path.name} of checkpoint {path.parent.name} differs from its manifest")


def _seal(directory: Path, manifest: Manifest) -> Manifest:
    """Write the manifest with the hashes of the files that are there; returned once the disk holds them and it."""
    with ThreadPoolExecutor(_THREADS, "checkpoint") as pool:
        synced, hashed = [], {}
        # The disk takes files while others are hashed, and the largest take longest.
        for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_size, reverse=True):
            synced.append(pool.submit(_sync, path))
            hashed[path.name] = pool.submit(_digest, path)
        digests = {name: hashed[name].result() for name in sorted(hashed)}
        complete = replace(
            manifest,
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            files={name: digest for name, digest in digests.items() if name != OPTIMIZER_FILE},
            optimizer_files={name: digest for name, digest in digests.items() if name == OPTIMIZER_FILE},
        )
        (directory / MANIFEST_FILE).write_text(to_json(complete))
        synced += [pool.submit(_sync, path) for path in (directory / MANIFEST_FILE, directory)]
        for each in synced:
            each.result()
    return complete


def _digest(path: Path) -> FileDigest:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(file.tell(), digest)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(manifest: Manifest) -> str:
    """The manifest as its file holds it."""

    def files(digests: Mapping[str, FileDigest]) -> dict[str, Any]:
        return {name: {"bytes": digest.bytes, "sha256": digest.sha256} for name, digest in digests.items()}

    return json.dumps(
        {
            "format": 1,
            "step": manifest.step,
            "model": manifest.model,
            "base_model": manifest.base_model,
            "parent": manifest.parent,
            "created": manifest.created,
            "metrics": dict(manifest.metrics),
            "files": files(manifest.files),
            "optimizer_files": files(manifest.optimizer_files),
        },
        indent=2,
    )


def from_json(value: Any) -> Manifest:
    """A manifest of a file's JSON. Raises ValueError, KeyError, TypeError or AttributeError."""

    def files(digests: Any) -> dict[str, FileDigest]:
        return {str(Path(name).name): FileDigest(d["bytes"], d["sha256"]) for name, d in digests.items()}

    if value["format"] != 1:
        raise ValueError(f"unknown manifest format {value['format']!r}")
    return Manifest(
        int(value["step"]),
        str(value["model"]),
        str(value["base_model"]),
        value["parent"],
        value["metrics"],
        str(value["created"]),
        files(value["files"]),
        files(value["optimizer_files"]),
    )
