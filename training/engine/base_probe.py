"""Asks a base model for tool calls in several formats, in a child process with limits (probe_base.py)."""

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from training.base_report import FormatCount
from training.engine.base_check import CHECK_BYTES, NotChecked, child_command, child_environment

PROMPTS = 32
"""Usual number of prompts in each format, and the largest."""
_WALL_S = 3600.0
"""Wall time after which a probe is ended. A 1.5B model on two cores takes a quarter of it."""
_CPU_COPIES = 6
"""Memory for the weights, as a multiple of their size in files: read and laid out for sampling, both in float32."""
_CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TRITON_CACHE_DIR")


class OnProgress(Protocol):
    """Receives how far a piece of work is."""

    def phase(self, name: str, total: int | None = None) -> None:
        """The next phase begins. `total` is the amount of work in it, or None if that is unknown."""

    def advance(self, amount: int) -> None:
        """That much more of the phase is done."""

    def say(self, text: str) -> None:
        """There is something to say about it."""


class Silent:
    """Progress that nothing shows."""

    def phase(self, name: str, total: int | None = None) -> None: ...

    def advance(self, amount: int) -> None: ...

    def say(self, text: str) -> None: ...


def probe_base(directory: Path, *, prompts: int, device: str, progress: OnProgress) -> tuple[FormatCount, ...]:
    """Ask a base model `prompts` questions (1 to 32) in each format, on `device` (auto, cpu or cuda).

    Returns what was counted, first for the format that its chat template shows.

    Raises NotChecked if the process ends without an answer.
    """
    memory = CHECK_BYTES + _CPU_COPIES * sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    command = child_command("training.engine.probe_base", directory, device, prompts, memory)
    progress.phase("loading it for the probe")
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(),
        )
    except OSError as error:
        raise NotChecked(f"the process that asks it for calls did not start: {error.strerror}") from error
    timer = threading.Timer(_WALL_S, child.kill)
    timer.start()
    try:
        answer = _followed(child, progress)
    finally:
        timer.cancel()
        child.kill()
        child.wait()
    if answer is None:
        raise NotChecked(f"the process that asks it for calls ended with status {child.returncode}")
    return answer


def _environment() -> Mapping[str, str]:
    """Return the child's environment, which can compute with all cores and GPUs.

    Its threads sleep while they wait for each other: on cores that other processes use too, threads that spin take
    twenty times as long.
    """
    kept = {name: os.environ[name] for name in _CUDA_VARIABLES if name in os.environ}
    checked = {name: value for name, value in child_environment().items() if name != "OMP_NUM_THREADS"}
    return kept | checked | {"OMP_WAIT_POLICY": "PASSIVE"}


def _followed(child: "subprocess.Popen[str]", progress: OnProgress) -> tuple[FormatCount, ...] | None:
    """Show the child's progress, and return its answer, or None if it ends without one."""
    assert child.stdout is not None
    done = 0
    for line in child.stdout:
        said: dict[str, Any] = {}
        with suppress(ValueError):
            said = json.loads(line)
        if "formats" in said:
            return tuple(FormatCount(**each) for each in said["formats"])
        if "device" in said:
            progress.phase(f"asking it for calls on {said['device']}", said["total"])
        if "replies" in said:
            progress.advance(said["replies"] - done)
            done = said["replies"]
        if "estimate_s" in said:
            progress.say(f"The probe takes another {said['estimate_s']:.0f} s or so; `--prompts 0` leaves it out.")
    return None
