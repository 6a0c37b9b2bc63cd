"""A real engine process for tests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 100.0
ROOT = Path(__file__).parents[2]


class EngineProcess:
    """`python -m training.engine` over a data directory; a context manager that ends it."""

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        command: tuple[str, ...] = ("training.engine",),
    ) -> None:
        """`command` is what `python -m` runs."""
        self.data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        self._ready = data_dir / "ready.json"
        self._ready.unlink(missing_ok=True)
        self._log = (data_dir / "engine.log").open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", *command, "--data-dir", str(data_dir)),
                *("--ready-file", str(self._ready), "--die-with-parent", str(os.getpid()), *arguments),
            ],
            cwd=ROOT,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> "EngineProcess":
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
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
        """Of the API, with `/v1`."""
        return f"http://127.0.0.1:{json.loads(self._ready.read_text())['port']}/v1"

    def log(self) -> str:
        """What it wrote to stderr."""
        return (self.data_dir / "engine.log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self._log.close()
        return status
