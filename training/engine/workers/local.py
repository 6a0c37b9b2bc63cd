"""Workers as processes on this machine, each with its own device."""

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from learnloop_service.training.engine.workers.link import FrontEnd, PipeEnd, ToWorker, WorkerReport, WorkerSpec

GPUS = "CUDA_VISIBLE_DEVICES"
_LOOPBACK = "127.0.0.1"


class LocalWorkers:
    """A Placement on this machine. Workers are forked from a process that has already done the imports, because imports
    take seconds and a fork does not.

    Workers end when their pipe is closed, which the operating system does if the front dies.
    """

    def __init__(self, fork_server: ForkServerContext | None = None) -> None:
        """`fork_server` is a server that has done the imports. None starts a new one."""
        self._context = fork_server or _fork_server()
        forkserver.ensure_running()  # its imports run while this process does other work
        self._directory = tempfile.TemporaryDirectory(prefix="learnloop-trainers-")
        self._groups = 0

    def start(self, spec: WorkerSpec) -> FrontEnd:
        from learnloop_service.training.engine.workers.process import run

        ours, theirs = self._context.Pipe()
        environment = {GPUS: gpu(spec.number)} if spec.device == "cuda" else {}
        process = self._context.Process(
            target=run, args=(spec, theirs, environment), name=f"worker-{spec.number}", daemon=True
        )
        process.start()
        theirs.close()
        return _LocalWorker(process, ours)

    def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
        self._groups += 1
        return f"file://{Path(self._directory.name) / str(self._groups)}"

    def close(self) -> None:
        self._directory.cleanup()


def _fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["learnloop_service.training.engine.workers.process"])
    return context


def gpu(number: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for the worker of that number."""
    visible = os.environ.get(GPUS)
    return visible.split(",")[number] if visible else str(number)


class _LocalWorker(PipeEnd):
    host = _LOOPBACK

    def __init__(self, process: ForkServerProcess, pipe: "Connection[ToWorker, WorkerReport]") -> None:
        super().__init__(pipe, "worker")
        self._process = process
        self._ending = threading.Lock()

    @property
    def location(self) -> str:
        return f"process {self._process.pid}"

    def end(self) -> None:
        with self._ending:
            self._process.kill()
            self._process.join()
