"""Checks a base model that others made, and asks it for tool calls in several formats, in child processes with limits.

Its files decide how much memory and time reading them takes, and its chat template is a program. The children are
training/engine/examination/check_child.py and probe_child.py.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from learnloop_service.training.bases.report import FormatCount, read
from learnloop_service.training.bases.verdicts import BaseVerdict

CHECK_CPU_S = 60
"""Limit of the child's processor time in seconds. Importing the libraries takes 5 to 15 s of it."""
CHECK_BYTES = 4 << 30
"""Limit of the child's address space in bytes, beyond what the libraries take."""
_WALL_S = 900.0
_PROBE_WALL_S = 3600.0
"""Wall time after which a probe is ended. A 1.5B model on two cores takes a quarter of it."""
_CPU_COPIES = 6
"""Memory of a probe for the weights, as a multiple of their size in files: read and laid out for sampling, both in
float32."""
_CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TRITON_CACHE_DIR")
_RUN_MODULE = (sys.executable, "-m")
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR")


class NotChecked(Exception):
    """The check could not be made here and now, which says nothing about the base model."""


class OnProgress(Protocol):
    """Receives the progress of a piece of work."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin the next phase. `total` is the amount of work in it, or None if that is unknown."""

    def advance(self, amount: int) -> None:
        """Add to the finished amount of the phase."""

    def say(self, text: str) -> None:
        """Show a sentence about the work."""


class Silent:
    """Discards the progress."""

    def phase(self, name: str, total: int | None = None) -> None: ...

    def advance(self, amount: int) -> None: ...

    def say(self, text: str) -> None: ...


def check(directory: Path) -> BaseVerdict:
    """Load, render and examine a base model in a child process. Raises NotChecked."""
    command = child_command(
        "learnloop_service.training.engine.examination.check_child", directory, CHECK_CPU_S, CHECK_BYTES
    )
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_WALL_S,
            env=child_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotChecked(f"its check did not end within {_WALL_S:.0f} s") from None
    except OSError as error:
        raise NotChecked(f"the process that checks it did not start: {error.strerror}") from error
    if child.returncode == 0:
        answer = json.loads(child.stdout.splitlines()[-1])
        return BaseVerdict(answer["fault"], read(answer["report"]))
    if child.returncode == -signal.SIGXCPU:
        return BaseVerdict(f"loading it and rendering a conversation take more than {CHECK_CPU_S} s of processor time")
    if child.returncode in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
        return BaseVerdict(f"loading it ends the process ({signal.Signals(-child.returncode).name})")
    raise NotChecked(f"the process that checks it ended with status {child.returncode}")


def probe(directory: Path, *, prompts: int, device: str, progress: OnProgress) -> tuple[FormatCount, ...]:
    """Ask a base model `prompts` questions (1 to 32) in each format, on `device` (auto, cpu or cuda).

    Returns what was counted, first for the format that its chat template shows.

    Raises NotChecked if the process ends without an answer.
    """
    memory = CHECK_BYTES + _CPU_COPIES * sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    command = child_command(
        "learnloop_service.training.engine.examination.probe_child", directory, device, prompts, memory
    )
    progress.phase("loading it for the probe")
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_probe_environment(),
        )
    except OSError as error:
        raise NotChecked(f"the process that asks it for calls did not start: {error.strerror}") from error
    timer = threading.Timer(_PROBE_WALL_S, child.kill)
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


def _followed(child: "subprocess.Popen[str]", progress: OnProgress) -> tuple[FormatCount, ...] | None:
    """Show the child's progress, and return its answer, or None if it ends without one."""
    assert child.stdout is not None
    replies = 0
    for line in child.stdout:
        message: dict[str, Any] = {}
        with suppress(ValueError):
            message = json.loads(line)
        if "formats" in message:
            return tuple(FormatCount(**count) for count in message["formats"])
        if "device" in message:
            progress.phase(f"asking it for calls on {message['device']}", message["total"])
        if "replies" in message:
            progress.advance(message["replies"] - replies)
            replies = message["replies"]
        if "estimate_s" in message:
            progress.say(f"The probe takes another {message['estimate_s']:.0f} s or so; `--prompts 0` leaves it out.")
    return None


def child_command(module: str, *arguments: object) -> tuple[str, ...]:
    """Return the command line of a process that runs a module over files from outside."""
    return (*_RUN_MODULE, module, *map(str, arguments))


def child_environment() -> Mapping[str, str]:
    """Return the environment of a process that handles files from outside: without secrets, and offline."""
    passed = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return passed | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _probe_environment() -> Mapping[str, str]:
    """Return the environment of a probe, which can compute with all cores and GPUs.

    Its threads sleep while they wait for each other: on cores that other processes use too, threads that spin take
    twenty times as long.
    """
    passed = {name: os.environ[name] for name in _CUDA_VARIABLES if name in os.environ}
    checked = {name: value for name, value in child_environment().items() if name != "OMP_NUM_THREADS"}
    return passed | checked | {"OMP_WAIT_POLICY": "PASSIVE"}
