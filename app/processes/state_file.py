"""One-line files in the data directory. They are written atomically, and their content is checked when it is read."""

import os
import re
import tempfile
from pathlib import Path

from learnloop_service.app.processes.data_directory import DataDirectoryError


class DamagedFile(DataDirectoryError):
    """A file does not contain what we write to it. The message names it."""


def read_line(path: Path, pattern: str, expected: str) -> str | None:
    """Return the line, or None if the file is missing. Raises DamagedFile; its message names what was `expected`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from error
    text = content.decode(errors="replace").strip()
    if not re.fullmatch(pattern, text) or "\ufffd" in text:
        raise DamagedFile(f"{path} is damaged: it holds {content[:40]!r} instead of {expected}")
    return text


def write_line(path: Path, line: str) -> None:
    """Write the file atomically, even if the process dies meanwhile. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
