"""Prints the number of processes to run the tests in: python3 scripts/test_workers.py

Tests often wait, so a small machine runs more of them than it has cores, as far as its memory allows: each process has
a Postgres, an engine and sometimes a browser. This script runs before anything is installed.
"""

import os
from contextlib import suppress
from pathlib import Path

_BYTES_EACH = 2_500_000_000
_MOST = 8
_FEW_CORES = 4
_LIMIT_OF_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def workers() -> int:
    """Return the number of processes, at least one."""
    cores = os.cpu_count() or 1
    count = 2 * cores + 1 if cores < _FEW_CORES else _MOST
    return max(1, min(count, _memory() // _BYTES_EACH))


def _memory() -> int:
    """Return the memory in bytes of this machine, or of the container if it has less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # There is no container, or it has no limit.
        memory = min(memory, int(_LIMIT_OF_CONTAINER.read_text()))
    return memory


if __name__ == "__main__":
    print(workers())
