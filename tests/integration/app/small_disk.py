"""A small disk of its own for a test, which can be filled without harm to anybody."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(megabytes: int, *options: str) -> Iterator[Path]:
    """A directory on a memory disk of that size. Skips the test where this process may not mount one."""
    with tempfile.TemporaryDirectory(prefix="learnloop-disk-") as place:
        given = ",".join((f"size={megabytes}m", "mode=755", *options))
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", given, "tmpfs", place], capture_output=True, text=True, check=False
        )
        if mount.returncode != 0:
            pytest.skip(f"no memory disk can be mounted here: {mount.stderr.strip()}")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Not one byte is free on that disk meanwhile."""
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4_096))
        yield
    finally:
        filler.unlink()
