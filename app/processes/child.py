"""Child processes that do not outlive the service: each has its own process group and is ended with its parent.

On Linux the kernel sends the child a signal when the parent dies. Elsewhere, the next service ends what a kill -9 left
behind: a child is recorded in a file as (pid, start time), so that another process with the same pid is never ended.
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
_PASSED_ON = frozenset(
    {"CC", "CXX", "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "TZ", "USER"}
    | {"REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "VIRTUAL_ENV"}
)
_PASSED_ON_PREFIXES = ("LC_", "LD_", "MALLOC_", "XDG_")
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
    """Start a child process, as the (uid, gid) in `user`. Call it on the event loop's own thread: Linux sends
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


def inherited(*prefixes: str) -> dict[str, str]:
    """Return the variables of our environment that a child needs: those of the system, and those that begin with a
    prefix. Our keys, and those of providers, are not among them."""
    begins = (*_PASSED_ON_PREFIXES, *prefixes)
    return {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(begins)}


def _in_child(parent: int, user: tuple[int, int] | None, death_signal: int) -> Callable[[], None]:
    def prepare() -> None:
        if user is not None:
            os.setgroups([])
            os.setgid(user[1])
            os.setuid(user[0])
        if _libc is not None:  # after setuid, which would clear it
            _libc.prctl(PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


async def stop(process: asyncio.subprocess.Process, first: int, timeout_s: float) -> int:
    """Send the child the signal `first`, kill its whole group after the timeout, and return its exit status."""
    with suppress(ProcessLookupError):
        process.send_signal(first)
    try:
        # In Python 3.11, wait_for loses a cancellation that coincides with the child's end.
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    except TimeoutError:
        kill_group(process)
        return await process.wait()


async def run_in(folder: Path, argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> None:
    """Run a process to its end, with its standard error in the folder's file `stderr`. Raises TimeoutError after
    killing it."""
    with (folder / "stderr").open("wb") as stderr:
        process = await spawn(argv, stderr=stderr, env=env)
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    finally:
        if process.returncode is None:
            await stop(process, signal.SIGKILL, timeout_s=1.0)


def last_words(folder: Path) -> str:
    """Return the last line that the process wrote to `stderr`, or an empty text."""
    return "".join((folder / "stderr").read_text(errors="replace").strip().splitlines()[-1:])


def kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL the child's process group, which also ends frozen processes."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def remember(path: Path, pid: int) -> None:
    """Record the child in a file. On errors such as a full disk, only the kernel's signal ends the child later."""
    with suppress(psutil.NoSuchProcess, OSError):
        path.write_text(json.dumps({"pid": pid, "started": _started(pid)}))


def read(path: Path) -> psutil.Process | None:
    """Return the recorded child if it is still alive."""
    try:
        record = json.loads(path.read_text())
        process = psutil.Process(record["pid"])
        alive = _started(process.pid) == record["started"] and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if alive else None


def _started(pid: int) -> str:
    """Return when the process was started, independently of the wall clock: on Linux, the boot id and the ticks since
    boot. Raises OSError or psutil.Error."""
    if sys.platform != "linux":
        return str(psutil.Process(pid).create_time())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # after the name, which can contain blanks
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{boot}:{fields[19]}"


def end_leftover(path: Path, timeout_s: float = 10.0) -> bool:
    """Kill the recorded child's group and wait until it is gone. Return whether the child was still alive."""
    process = read(path)
    if process is None:
        return False
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    # psutil's wait would also wait until the process that adopted the dead child reaps it.
    while read(path) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return True
