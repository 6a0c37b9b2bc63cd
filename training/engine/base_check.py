"""Checks a base model that others made, in a child process with limits, before it is used.

Its files decide how much memory and time reading them takes, and its chat template is a program. The child is
check_base.py.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from training.base_report import read
from training.base_verdicts import Verdict

CHECK_CPU_S = 60
"""Limit of the child's processor time in seconds. Importing the libraries takes 5 to 15 s of it."""
CHECK_BYTES = 4 << 30
"""Limit of the child's address space in bytes, beyond what the libraries take."""
_WALL_S = 900.0
_RUN_MODULE = (sys.executable, "-m")
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR")


class NotChecked(Exception):
    """The check could not be made here and now, which says nothing about the base model."""


def check(directory: Path) -> Verdict:
    """Load, render and examine a base model in a child process. Raises NotChecked."""
    command = child_command("training.engine.check_base", directory, CHECK_CPU_S, CHECK_BYTES)
    try:
        done = subprocess.run(
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
    if done.returncode == 0:
        found = json.loads(done.stdout.splitlines()[-1])
        return Verdict(found["fault"], read(found["report"]))
    if done.returncode == -signal.SIGXCPU:
        return Verdict(f"loading it and rendering a conversation take more than {CHECK_CPU_S} s of processor time")
    if done.returncode in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
        return Verdict(f"loading it ends the process ({signal.Signals(-done.returncode).name})")
    raise NotChecked(f"the process that checks it ended with status {done.returncode}")


def child_command(module: str, *arguments: object) -> tuple[str, ...]:
    """Return the command line of a process that runs a module over files from outside."""
    return (*_RUN_MODULE, module, *map(str, arguments))


def child_environment() -> Mapping[str, str]:
    """Return the environment of a process that handles files from outside: without secrets, and offline."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
