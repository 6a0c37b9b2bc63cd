"""Engines forked from a process that has imported what an engine needs: the imports take seconds, a fork does not.

multiprocessing's fork server is that process. There is one for each process that runs tests, and it ends with it.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

_PRELOADED = "tests.fakes.preloaded_engine"


def start(arguments: list[str], log_path: Path, cwd: Path, environment: Mapping[str, str]) -> ForkServerProcess:
    """An engine with those arguments, which ends with the fork server; its stderr goes to `log_path`."""
    process = fork_server().Process(target=_run, args=(arguments, log_path, cwd, environment))
    process.start()
    return process


@cache
def fork_server() -> ForkServerContext:
    """Whose processes have imported what an engine imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    return context


def _run(arguments: list[str], log_path: Path, cwd: Path, environment: Mapping[str, str]) -> None:
    from training.engine.__main__ import main

    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.exit(main([*arguments, "--die-with-parent", str(os.getppid())]))
