"""A checkpoint as one tar, built while it is sent: the checkpoint's files and their manifest of SHA-256 hashes, without
internal files."""

import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from learnloop_service.training.engine.registry.checkpoints import MANIFEST_FILE, CorruptCheckpoint, StoredCheckpoint

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Export:
    """The open files of a checkpoint, which can be sent even if the checkpoint is deleted meanwhile. `pieces` closes
    them."""

    headers: tuple[bytes, ...]
    files: tuple[BinaryIO, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size of the whole tar in bytes."""
        return sum(map(len, self.headers)) + sum(size + _padding(size) for size in self.sizes) + 2 * tarfile.BLOCKSIZE

    def pieces(self) -> Iterator[bytes]:
        """Yield the tar in pieces."""
        with ExitStack() as stack:
            for file in self.files:
                stack.enter_context(file)
            for header, file, size in zip(self.headers, self.files, self.sizes, strict=True):
                yield header
                remaining = size
                while piece := file.read(min(_PIECE, remaining)):
                    remaining -= len(piece)
                    yield piece
                if remaining:
                    raise CorruptCheckpoint("a file of the checkpoint became shorter while it was sent")
                yield bytes(_padding(size))
            yield bytes(2 * tarfile.BLOCKSIZE)


def export(checkpoint: StoredCheckpoint, folder: str) -> Export:
    """Open a checkpoint for export into a tar folder named `folder`, after checking all its files against their hashes.

    The optimizer's state is not exported. Raises CorruptCheckpoint.
    """
    checkpoint.verify()
    names = [*sorted(checkpoint.manifest.files), MANIFEST_FILE]
    created = datetime.fromisoformat(checkpoint.manifest.created).timestamp()
    with ExitStack() as stack:
        files = [stack.enter_context(_open(checkpoint.directory / name)) for name in names]
        sizes = [file.seek(0, 2) for file in files]
        for file in files:
            file.seek(0)
        stack.pop_all()  # the Export closes them from here on
    headers = [_header(f"{folder}/{name}", size, created) for name, size in zip(names, sizes, strict=True)]
    return Export(tuple(headers), tuple(files), tuple(sizes))


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CorruptCheckpoint(f"{path.name} of checkpoint {path.parent.name} cannot be read") from error


def _header(name: str, size: int, created: float) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = int(created)
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE
