"""Keeps the data directory to its user, because it holds people's mail and tasks."""

import os
import stat
from contextlib import suppress
from pathlib import Path

_KNOWN = ("art", "base-checks", "datasets", "engine", "hub", "inboxes", "models", "pipelines", "pushes", "runs")
"""Folders of a data directory. Others in it can be somebody's own."""


def keep_private(directory: Path) -> None:
    """Let only its user read what this process makes from now on, and what the data directory already holds.

    As root, other accounts can still pass through it to what is theirs: Postgres has an account of its own.
    """
    os.umask(0o077)
    for name in _KNOWN:
        _close(directory / name, 0o077, deep=True)
    _close(directory, 0o076 if os.geteuid() == 0 else 0o077, deep=False)


def _close(folder: Path, others: int, *, deep: bool) -> None:
    """Take the rights of others from a folder and its files, the folder last: if it is closed, all of it is."""
    with suppress(OSError):  # it is missing, or not ours
        folder_status = folder.lstat()
        if (
            not stat.S_ISDIR(folder_status.st_mode)
            or folder_status.st_mode & stat.S_ISVTX
            or not folder_status.st_mode & others
        ):
            return
        for item in folder.iterdir():
            status = item.lstat()
            if deep and stat.S_ISDIR(status.st_mode):
                _close(item, others, deep=True)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # another name of it can be elsewhere
                item.chmod(stat.S_IMODE(status.st_mode) & ~0o077)
        folder.chmod(stat.S_IMODE(folder_status.st_mode) & ~others)
