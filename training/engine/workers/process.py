"""A worker in a process on this machine. The fork server imports this module once for all workers."""

import os
import signal
from multiprocessing.connection import Connection

from learnloop_service.training.engine.logs import configure_logs
from learnloop_service.training.engine.workers.link import PipeEnd, ToWorker, WorkerReport, WorkerSpec
from learnloop_service.training.garbage import freeze_gc

with freeze_gc():
    import learnloop_service.training.engine.trainer.pretrained  # noqa: F401  # imported here, all workers share it
    from learnloop_service.training.engine.workers.worker import serve


def run(spec: WorkerSpec, pipe: "Connection[WorkerReport, ToWorker]", environment: dict[str, str]) -> None:
    """Run a worker in this process until the front ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the front, which ends its workers
    os.environ.update(environment)
    configure_logs()
    serve(spec, PipeEnd(pipe, "front"))
