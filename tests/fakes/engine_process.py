"""A real engine process for tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType

from tests.fakes import forked_engine, preloaded_engine  # noqa: F401  # the second is for forked engines

START_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 60.0
ROOT = Path(__file__).parents[2]

_Process = ForkServerProcess | subprocess.Popen[bytes]


class EngineProcess:
    """An engine over a data directory; a context manager that ends it.

    It is forked from a process that has imported everything, unless `command` is given, the one that users would start.
    """

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        command: tuple[str, ...] | None = None,
        run_module: Sequence[str] = (),
    ) -> None:
        """`command` is what `python -m` runs; `environment` is added to our own; `run_module` is a ForkedModule's, for
        the processes that check bases."""
        self.data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        self._ready = data_dir / "ready.json"
        self._ready.unlink(missing_ok=True)
        flags = ["--data-dir", str(data_dir), "--ready-file", str(self._ready), *arguments]
        self._process: _Process
        if command is None:
            self._process = forked_engine.start(flags, self._log_path, ROOT, environment or {}, run_module)
        else:
            run = [sys.executable, "-m", *command, *flags]
            with self._log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    [*run, "--die-with-parent", str(os.getpid())],
                    cwd=ROOT,
                    stderr=log,
                    env={**os.environ, **(environment or {})},
                )

    def __enter__(self) -> "EngineProcess":
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self._status() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise AssertionError(f"the engine did not start: {self.log()}")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """Base URL of the API, with `/v1`."""
        return f"http://127.0.0.1:{json.loads(self._ready.read_text())['port']}/v1"

    @property
    def pid(self) -> int:
        """Id of the engine's process."""
        assert self._process.pid is not None
        return self._process.pid

    def log(self) -> str:
        """Return what the engine wrote to stderr."""
        return self._log_path.read_text()

    def send_signal(self, number: int) -> None:
        """Send a signal, if the engine is still running."""
        if self._status() is None:
            os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit status in the form that `subprocess` uses."""
        self.send_signal(number)
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait(timeout=STOP_TIMEOUT_S)
        self._process.join(STOP_TIMEOUT_S)
        status = self._process.exitcode
        assert status is not None, "the engine did not end"
        return status

    def _status(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode

    @property
    def _log_path(self) -> Path:
        return self.data_dir / "engine.log"
