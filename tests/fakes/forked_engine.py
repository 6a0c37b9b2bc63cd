"""Engines forked from a process that has the imports of the tests, which take seconds.

That process is multiprocessing's fork server. Each process that runs tests has its own, which is forked from it before
the first test and ends with it.
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


def start(
    arguments: list[str], log_path: Path, cwd: Path, environment: Mapping[str, str], run_module: Sequence[str]
) -> ForkServerProcess:
    """Start an engine with these arguments. It ends with the fork server, and its stderr goes to `log_path`. If
    `run_module` is not empty, it replaces `python -m` for the processes that check bases."""
    process = fork_server().Process(target=_run, args=(arguments, log_path, cwd, environment, tuple(run_module)))
    process.start()
    return process


def fork_server() -> ForkServerContext:
    """Return the context whose processes have the imports of the tests."""
    return multiprocessing.get_context("forkserver")


def start_fork_server() -> None:
    """Start the fork server, before this process has threads, which a fork does not copy, or open resources."""
    resource_tracker.ensure_running()
    with mock.patch.object(util, "spawnv_passfds", _fork):
        forkserver.ensure_running()


def _fork(path: str, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Run what Python would run in a new interpreter in a fork of this process, without its other open files."""
    if pid := os.fork():
        return pid
    faulthandler.disable()  # it writes to a file of pytest's
    server: Any = forkserver._forkserver
    server._lock = threading.Lock()  # this copy is locked, and children can start a server themselves
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    first = 3
    for descriptor in [*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(first, descriptor)
        first = descriptor + 1
    try:
        exec(arguments[-1])
    finally:
        os._exit(0)


def _run(
    arguments: list[str], log_path: Path, cwd: Path, environment: Mapping[str, str], run_module: tuple[str, ...]
) -> None:
    from learnloop_service.training.bases import child_processes
    from learnloop_service.training.engine.__main__ import main

    if run_module:
        vars(child_processes)["_RUN_MODULE"] = run_module
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.exit(main([*arguments, "--die-with-parent", str(os.getppid())]))
