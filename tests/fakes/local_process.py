"""A real process of ART's local backend for tests, over a scripted service."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.fakes.forked_module import ForkedModule

KEY = "local-key"
START_TIMEOUT_S = 200.0
_VARIABLE = "LOCAL_CHILD_KEY"
ROOT = Path(__file__).parents[2]


class LocalProcess:
    """Runs `python -m tests.fakes.local_child` over a data directory, forked from a process that has imported ART.
    After its death, it can be started again on the same port."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        self._arguments = arguments
        self._forked = ForkedModule("tests.fakes.local_child", "tests.fakes.preloaded_art")
        self._ready = data_dir / "ready.json"
        self._port = 0
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._ready.unlink(missing_ok=True)
        flags = ["--data-dir", str(self.data_dir), "--ready-file", str(self._ready), "--port", str(self._port)]
        command = self._forked.command(*flags, "--api-key-env", _VARIABLE, *self._arguments)
        environment = {**os.environ, _VARIABLE: KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
        with (self.data_dir / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log)

    def __enter__(self) -> "LocalProcess":
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"it did not start: {(self.data_dir / 'log').read_text()[-3000:]}")
            time.sleep(0.01)
        self._port = json.loads(self._ready.read_text())["port"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._forked.close()

    def stop(self) -> int:
        """Stop it, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def start_again(self) -> None:
        """Start it again after its death, and wait until it listens."""
        self.process = self._start()
        self.__enter__()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def trained(self) -> list[int]:
        """Steps from which it has trained."""
        file = self.data_dir / "trained"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def checkpoints(self, project: str, name: str) -> Path:
        return self.data_dir / "art" / project / "models" / name / "checkpoints"

    def order(self, text: str) -> None:
        (self.data_dir / "orders").write_text(text)
