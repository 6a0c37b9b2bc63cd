"""The service's engine process, replaced by a scripted one."""

import sys
from pathlib import Path

from learnloop_service.app.processes import child as child_process

ENGINE_CHILD = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "engine_child.py"))


def engine_pid(data_dir: Path) -> int:
    process = child_process.read(data_dir / "engine" / "process.json")
    assert process is not None
    return process.pid
