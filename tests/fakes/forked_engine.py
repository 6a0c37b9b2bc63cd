"""Engines forked from a process that has imported what the tests have: the imports take seconds, a fork does not.

multiprocessing's fork server is that process. There is one for each process that runs tests; it is itself forked from
that before the first test, and ends with it.
"""

import faulthandler
import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock


def start(arguments: list[str], log_path: Path, cwd: Path, environment: Mapping[str, str]) -> ForkServerProcess:
    """An engine with those arguments, which ends with the fork server; its stderr goes to `log_path`."""
    process = fork_server().Process(target=_run, args=(arguments, log_path, cwd, environment))
    process.start()
    return process


def fork_server() -> ForkServerContext:
    """Whose processes have imported what the tests have."""
    return multiprocessing.get_context("forkserver")


def start_fork_server() -> None:
    """Before this process has threads, which a fork does not copy, or anything open."""
    resource_tracker.ensure_running()
    with mock.patch.object(util, "spawnv_passfds", _fork):
        forkserver.ensure_running()


def _fork(path: str, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """What Python would run in a new interpreter, in a copy of this process with no other files open."""
    if pid := os.fork():
        return pid
    faulthandler.disable()  # pytest gave it a file
    server: Any = forkserver._forkserver
    server._lock = threading.Lock()  # held by who starts it; its children may start one of their own
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    first = 3
    for descriptor in [*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(first, descriptor)
        first = descriptor + 1
    try:
        exec(arguments[-1])
    finally:
        os._exit(0)


def _run(arguments: list[str], log_path: Path, cwd: Path, environment: Mapping[str, str]) -> None:
    from training.engine.__main__ import main

    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.exit(main([*arguments, "--die-with-parent", str(os.getppid())]))
