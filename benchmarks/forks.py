"""Forks processes from a server that has already imported their module, because imports take seconds.

`python -m benchmarks.forks MODULE` is that server. It imports the module. For each line on stdin, a JSON list of
arguments, it forks a process that calls the module's `main`, and prints the process id. It ends when stdin closes.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import BinaryIO


class Forked:
    """A process that is not a child of this one, so its exit status is unknown."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def poll(self) -> int | None:
        """Return 0 if it has ended, else None."""
        return 0 if select.select([self._descriptor], [], [], 0)[0] else None

    def wait(self) -> None:
        """Wait until it has ended."""
        select.select([self._descriptor], [], [])

    def send_signal(self, number: int) -> None:
        """Send the signal unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """Starts processes of a module, imported from `code`; all of them write stderr to `log`."""

    def __init__(self, module: str, code: Path, log: BinaryIO) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.forks", module],
            cwd=code,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def start(self, arguments: Sequence[str]) -> Forked:
        """Start a process with these arguments. The first call waits for the imports."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(arguments) + "\n")
        self._server.stdin.flush()
        return Forked(int(self._server.stdout.readline()))

    def close(self) -> None:
        """Stop the server; processes that it started keep running."""
        self._server.communicate()


def _serve(module: str) -> None:
    main = import_module(module).main
    signal.signal(signal.SIGCHLD, _reap)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1):
                os.dup2(nothing, stream)
            sys.argv[1:] = json.loads(line)
            main()
            return
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _reap(number: int, frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    _serve(sys.argv[1])
