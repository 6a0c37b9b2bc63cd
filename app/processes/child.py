"""Children that do not outlive the service: own process group, killed by the kernel when their parent dies.

A child is remembered in a file as (pid, start), so that the next service can end what a kill -9 left behind
where the kernel has no parent-death signal, and never ends a stranger who got the same pid.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


async def spawn(
    argv: Sequence[str],
    *,
    stderr: IO[bytes] | int,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: tuple[int, int] | None = None,
    death_signal: int = signal.SIGTERM,
) -> asyncio.subprocess.Process:
    """Start a child; `user` is the (uid, gid) it runs as. Call from the event loop's own thread: Linux sends
    `death_signal` when the thread that started the child ends."""
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_in_child(os.getpid(), user, death_signal),
    )


def _in_child(parent: int, user: tuple[int, int] | None, death_signal: int) -> Callable[[], None]:
    def prepare() -> None:
        if user is not None:
            os.setgroups([])
            os.setgid(user[1])
            os.setuid(user[0])
        if _libc is not None:  # after setuid, which clears it
            _libc.prctl(PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


async def stop(process: asyncio.subprocess.Process, first: int, timeout_s: float) -> int:
    """Ask the child to end with the signal `first`; kill its whole group if it has not in time. Its exit status."""
    with suppress(ProcessLookupError):
        process.send_signal(first)
    try:
        # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the child's end.
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    except TimeoutError:
        kill_group(process)
        return await process.wait()


def kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL the child and its group, which ends what is frozen, too."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def remember(path: Path, pid: int) -> None:
    """Write down which process the child is. On a full disk nothing is: then only the kernel's signal ends it."""
    with suppress(psutil.NoSuchProcess, OSError):
        path.write_text(json.dumps({"pid": pid, "started": _started(pid)}))


def read(path: Path) -> psutil.Process | None:
    """The remembered child, if it still lives."""
    try:
        known = json.loads(path.read_text())
        process = psutil.Process(known["pid"])
        alive = _started(process.pid) == known["started"] and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if alive else None


def _started(pid: int) -> str:
    """When the process was started, by a clock that nobody sets: on Linux the boot and the ticks since then. The time
    of day of its start would change with the wall clock. Raises OSError, psutil.Error."""
    if sys.platform != "linux":
        return str(psutil.Process(pid).create_time())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # behind the name, which may have blanks
    return f"{boot}:{fields[19]}"


def end_leftover(path: Path, timeout_s: float = 10.0) -> bool:
    """Kill the remembered child's group if it still lives; whether it did. Blocks until it is gone."""
    process = read(path)
    if process is None:
        return False
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    # Not psutil's wait: it waits for whoever adopted the dead child to take notice, too.
    while read(path) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return True
