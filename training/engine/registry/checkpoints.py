"""Checkpoints on disk. Each is written to a temporary directory and renamed, so that it is complete or absent, and is
checked against its hashes when read.

A checkpoint is a directory named after its step (six digits) in Hugging Face layout, or in peft's for an adapter, with
a `manifest.json`. The optimizer's files are listed separately because they can be removed from old checkpoints.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

MANIFEST_FILE = "manifest.json"
OPTIMIZER_FILE = "optimizer.safetensors"
"""The optimizer's state, or the first part of a large one."""
ADAPTER_FILE = "adapter_model.safetensors"
_TENSORS = ".safetensors"
_UNFINISHED = ".unfinished-"
_THREADS = 8


class CorruptCheckpoint(Exception):
    """Files of a checkpoint are missing or differ from its manifest."""


class CheckpointNotWritten(Exception):
    """The checkpoint could not be saved, and its partial files were removed."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file's size in bytes and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint's description of itself. `parent` is the checkpoint that it was trained or copied from, as
    `name@step`."""

    step: int
    model: str
    base_model: str
    parent: str | None = None
    created: str = ""
    """Creation time in RFC 3339, UTC."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    optimizer_files: Mapping[str, FileDigest] = field(default_factory=dict)

    @property
    def weights_sha256(self) -> str | None:
        """Hexadecimal SHA-256 of the files with tensors, made from their own hashes; None if there are none."""
        weights = sorted((name, digest.sha256) for name, digest in self.files.items() if name.endswith(_TENSORS))
        return hashlib.sha256(json.dumps(weights).encode()).hexdigest() if weights else None


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint found on disk."""

    directory: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The policy step of the checkpoint."""
        return self.manifest.step

    def verify(self) -> None:
        """Compare all files with the manifest. Raises CorruptCheckpoint."""
        for name, digest in self.manifest.files.items():
            _compare(self.directory / name, digest)
        for name, digest in self.manifest.optimizer_files.items():
            if (self.directory / name).exists():
                _compare(self.directory / name, digest)


def is_optimizer(name: str) -> bool:
    """Whether a file of a checkpoint, or an object with a piece of one, holds state of the optimizer."""
    return name.startswith("optimizer") and _TENSORS in name


def optimizer_part(number: int) -> str:
    """Return the name of a part of the optimizer's state, from 0."""
    return OPTIMIZER_FILE if number == 0 else f"optimizer-{number:03d}{_TENSORS}"


def optimizer_files(directory: Path) -> list[Path]:
    """Return the files with the optimizer's state in the directory of a checkpoint. None are returned if the manifest
    names one that is gone: the parts of an old state are removed one after the other, and a crash can leave some."""
    manifest = directory / MANIFEST_FILE
    named = from_json(json.loads(manifest.read_text())).optimizer_files if manifest.is_file() else ()
    if not all((directory / name).is_file() for name in named):
        return []
    return sorted(path for path in directory.iterdir() if is_optimizer(path.name))


Fill = Callable[[Path], Mapping[str, str] | None]
"""Writes files into a directory. It can return the SHA-256 of those that it hashed meanwhile, by name."""


def write(
    parent: Path,
    manifest: Manifest,
    fill: Fill,
    keep: Callable[[StoredCheckpoint], None] = lambda checkpoint: None,
) -> StoredCheckpoint:
    """Create the checkpoint `parent/<step>` from the files that `fill(directory)` writes. Raises CheckpointNotWritten.

    When it returns, the checkpoint survives a power cut. `keep` gets the complete checkpoint before it is moved into
    place; if `keep` raises, the checkpoint is discarded.
    """
    unfinished = parent / f"{_UNFINISHED}{manifest.step:06d}-{secrets.token_hex(4)}"
    path = parent / f"{manifest.step:06d}"
    try:
        unfinished.mkdir(parents=True)
        hashed = fill(unfinished)
        complete = _seal(unfinished, manifest, hashed or {})
        keep(StoredCheckpoint(unfinished, complete))
        unfinished.rename(path)
        _sync(parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk with its own error class
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointNotWritten(f"checkpoint {manifest.step} could not be written: {why}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return StoredCheckpoint(path, complete)


def receive(parent: Path, manifest: Manifest, fill: Callable[[Path], None]) -> StoredCheckpoint:
    """Replace or create the checkpoint described by `manifest` with the files that `fill(directory)` writes. Raises
    CorruptCheckpoint if they do not match the manifest, and CheckpointNotWritten if the disk refuses."""
    path = parent / f"{manifest.step:06d}"
    unfinished = parent / f"{_UNFINISHED}{manifest.step:06d}-{secrets.token_hex(4)}"
    try:
        unfinished.mkdir(parents=True)
        fill(unfinished)
        StoredCheckpoint(unfinished, manifest).verify()
        (unfinished / MANIFEST_FILE).write_text(to_json(manifest))
        if path.exists():
            set_aside(path)
        unfinished.rename(path)
    except OSError as error:
        raise CheckpointNotWritten(f"checkpoint {manifest.step} could not be written: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return StoredCheckpoint(path, manifest)


def scan(parent: Path) -> tuple[dict[int, StoredCheckpoint], list[Path]]:
    """Return the checkpoints below `parent` by step, and the paths of the corrupt ones, which are renamed to
    `<step>.torn`.

    Only cheap checks are made: the manifest and the file sizes. Leftovers of a killed process are removed.
    """
    by_step: dict[int, StoredCheckpoint] = {}
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
                by_step[checkpoint.step] = checkpoint
    return by_step, corrupt


def remove(directory: Path) -> None:
    """Delete a checkpoint if it exists. If the deletion is interrupted, the checkpoint is no longer visible and the
    next scan removes its leftovers."""
    tombstone = directory.with_name(f"{_UNFINISHED}deleted-{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        shutil.rmtree(directory.rename(tombstone), ignore_errors=True)


def set_aside(directory: Path) -> Path:
    """Rename a corrupt checkpoint so that it is ignored but can still be inspected. Return its new path."""
    torn = directory.with_name(f"{directory.name}.torn")
    if torn.exists():
        torn = directory.with_name(f"{directory.name}-{secrets.token_hex(4)}.torn")
    with suppress(FileNotFoundError):  # all of it has been deleted
        directory.rename(torn)
    return torn


def _read(directory: Path) -> StoredCheckpoint:
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
    return StoredCheckpoint(directory, manifest)


def _compare(path: Path, expected: FileDigest) -> None:
    try:
        digest = _digest(path)
    except OSError as error:
        raise CorruptCheckpoint(f"{path.name} of checkpoint {path.parent.name} cannot be read") from error
    if digest != expected:
        raise CorruptCheckpoint(f"{path.name} of checkpoint {path.parent.name} differs from its manifest")


def _seal(directory: Path, manifest: Manifest, sha256: Mapping[str, str]) -> Manifest:
    """Write the manifest with the hashes of the files in `directory`, and return it once everything has been flushed to
    disk. `sha256` has the hashes that are known already, by file name."""
    with ThreadPoolExecutor(_THREADS, "checkpoint") as pool:
        synced, hashed = [], {}
        # Files are flushed to disk while others are hashed. The largest take longest, so they go first.
        for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_size, reverse=True):
            synced.append(pool.submit(_sync, path))
            hashed[path.name] = pool.submit(_digest, path, sha256.get(path.name))
        digests = {name: hashed[name].result() for name in sorted(hashed)}
        complete = replace(
            manifest,
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            files={name: digest for name, digest in digests.items() if not is_optimizer(name)},
            optimizer_files={name: digest for name, digest in digests.items() if is_optimizer(name)},
        )
        (directory / MANIFEST_FILE).write_text(to_json(complete))
        synced += [pool.submit(_sync, path) for path in (directory / MANIFEST_FILE, directory)]
        for future in synced:
            future.result()
    return complete


def _digest(path: Path, sha256: str | None = None) -> FileDigest:
    with path.open("rb") as file:
        digest = sha256 or hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(file.seek(0, os.SEEK_END), digest)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(manifest: Manifest) -> str:
    """Return the manifest as the text of its file."""
    return json.dumps({"format": 1, **asdict(manifest)}, indent=2)


def from_json(value: Any) -> Manifest:
    """Parse a manifest from the JSON of its file. Raises ValueError, KeyError, TypeError or AttributeError."""

    def files(digests: Any) -> dict[str, FileDigest]:
        return {str(Path(name).name): FileDigest(d["bytes"], d["sha256"]) for name, d in digests.items()}

    if value["format"] != 1:
        raise ValueError(f"unknown manifest format {value['format']!r}")
    return Manifest(
        int(value["step"]),
        str(value["model"]),
        str(value["base_model"]),
        value["parent"],
        str(value["created"]),
        value["metrics"],
        files(value["files"]),
        files(value["optimizer_files"]),
    )
