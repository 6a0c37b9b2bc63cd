"""An object store in a directory that all machines mount."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from learnloop_service.training.engine.registry.object_store import BadStore, StoredObject, StoreUnavailable


class DirectoryStore:
    """Objects as files. Completed writes survive a power cut."""

    def __init__(self, root: Path) -> None:
        """Raises BadStore if the directory does not exist, since a missing one is often a mount that failed."""
        if not root.is_dir():
            raise BadStore(f"there is no directory {root} to keep checkpoints in: make it, or mount it")
        self.url = f"file://{root}"
        self._root = root

    def get(self, key: str) -> bytes | None:
        with _unavailable(self.url):
            try:
                return (self._root / key).read_bytes()
            except FileNotFoundError:
                return None

    def put(self, key: str, content: bytes) -> None:
        with _unavailable(self.url), self._written(content) as unfinished:
            self._into_place(unfinished, key, os.replace)

    def create(self, key: str, content: bytes) -> bool:
        with _unavailable(self.url), self._written(content) as unfinished:
            try:
                self._into_place(unfinished, key, os.link)
            except FileExistsError:
                return False
            return True

    def list(self, prefix: str) -> list[StoredObject]:
        with _unavailable(self.url):
            return sorted(self._listed(prefix), key=lambda stored: stored.key)

    def delete(self, keys: Iterable[str]) -> None:
        with _unavailable(self.url):
            for key in keys:
                (self._root / key).unlink(missing_ok=True)
                with suppress(OSError):  # not empty, or removed already
                    (self._root / key).parent.rmdir()

    def _listed(self, prefix: str) -> Iterator[StoredObject]:
        for directory, _, names in os.walk(self._root / prefix.rpartition("/")[0]):
            for name in names:
                path = Path(directory, name)
                key = path.relative_to(self._root).as_posix()
                with suppress(FileNotFoundError):  # deleted in the meantime
                    if key.startswith(prefix) and not name.startswith("."):
                        about = path.stat()
                        modified = datetime.fromtimestamp(about.st_mtime, UTC)
                        yield StoredObject(
                            key, about.st_size, f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}", modified
                        )

    @contextmanager
    def _written(self, content: bytes) -> Iterator[Path]:
        """Yield a temporary file with that content. It is removed afterwards unless it was renamed."""
        unfinished = self._root / f".unfinished-{secrets.token_hex(8)}"
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)

    def _into_place(self, unfinished: Path, key: str, move: Callable[[Path, Path], None]) -> None:
        path = self._root / key
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                move(unfinished, path)
            except FileNotFoundError:  # a concurrent deletion removed the directory because it was empty
                continue
            break
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def _unavailable(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"the checkpoint store {url}: {error.strerror or error}") from error
