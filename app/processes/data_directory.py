"""The data directory, which only one service at a time can use."""

import fcntl
import os
from pathlib import Path


class DataDirectoryError(Exception):
    """The data directory cannot be used: it is not writable, or another service uses it."""


class DataDirectory:
    """An exclusive lock on a data directory, which is created if missing. It ends with the process at the latest."""

    def __init__(self, path: Path) -> None:
        """Lock the directory. Raises DataDirectoryError."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "service.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise DataDirectoryError(
                f"{path} is in use by another service (process {holder}): "
                "stop it, name its address to commands with --url, or set LEARNLOOP_DATA_DIR"
            ) from None
        try:
            os.truncate(self._lock, 0)
            os.write(self._lock, str(os.getpid()).encode())
        except OSError as error:  # for example, the disk is full
            os.close(self._lock)
            raise _unusable(path, error) from error

    def release(self) -> None:
        """Release the lock. The operating system does so if this process dies."""
        os.close(self._lock)


def _unusable(path: Path, error: OSError) -> DataDirectoryError:
    return DataDirectoryError(f"cannot use the data directory {path}: {error.strerror}")
