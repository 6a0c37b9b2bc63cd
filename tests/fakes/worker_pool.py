"""A pool of real worker processes over a tiny random model, driven from a test's event loop."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from learnloop_service.training.engine.computing import Steps, TrainingTask
from learnloop_service.training.engine.engine import TrainResult
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.text.tokenizers import Tokenizers
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.engine.workers.link import Placement, WorkerSpec
from learnloop_service.training.engine.workers.local import LocalWorkers
from learnloop_service.training.engine.workers.pool import WorkerPool
from tests.conditions import until
from tests.fakes.forked_engine import fork_server

MICRO_BATCH_TOKENS = 60


class Pool(WorkerPool):
    """A pool with methods for tests."""

    registry: Registry

    @property
    def workers(self) -> list[dict[str, Any]]:
        """State of each worker, as in `/health`."""
        return list(self.details["workers"])

    def pid(self, worker: int) -> int:
        """Return the process id of a worker."""
        match = re.search(r"\d+", str(self.workers[worker]["place"]))
        assert match is not None
        return int(match[0])

    def kill(self, worker: int) -> None:
        """Kill a worker, as the kernel does when memory runs out."""
        os.kill(self.pid(worker), signal.SIGKILL)

    def busiest(self) -> int:
        """Return the worker that has sampled the most tokens."""
        sampled = [worker.get("figures", {}).get("sampled_tokens", 0) for worker in self.workers]
        return sampled.index(max(sampled))

    async def trained(self, steps: Steps) -> TrainResult:
        """Train to the end, and return the result. Raises the training's error."""
        outcome = await Following(self, steps).end
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Following:
    """A training whose progress and end can be awaited."""

    def __init__(self, pool: WorkerPool, steps: Steps) -> None:
        self.seen: list[StepProgress] = []
        self.begun = asyncio.Event()
        """Set after the first micro-batch."""
        self.end: asyncio.Future[TrainResult | Exception] = asyncio.get_running_loop().create_future()
        pool.train(TrainingTask(steps, lambda: None, self._progressed, self.end.set_result))

    def _progressed(self, progress: StepProgress) -> None:
        self.seen.append(progress)
        self.begun.set()


def specs(directory: Path, roles: Sequence[tuple[bool, bool]], base: Path, device: str = "cpu") -> list[WorkerSpec]:
    """Return the specs of workers over the data in `directory`. A role is whether it samples, and whether it trains."""
    return [
        WorkerSpec(
            number,
            samples,
            trains,
            device=device,
            data_dir=directory,
            base_models={"tiny": base},
            allowed_base_directories=(),
            slots=8,
            cache_bytes=None,
            micro_batch_tokens=MICRO_BATCH_TOKENS,
            threads=1,
            train_threads=1,
        )
        for number, (samples, trains) in enumerate(roles)
    ]


@asynccontextmanager
async def worker_pool(
    directory: Path,
    base: Path,
    roles: Sequence[tuple[bool, bool]] = ((True, True),) * 2,
    placement: Placement | None = None,
    device: str = "cpu",
) -> AsyncIterator[Pool]:
    """Run a pool over the base model `tiny` once its workers are up. By default, two workers do everything."""
    registry = Registry(directory, {"tiny": base})
    pool = Pool(registry, Tokenizers(), specs(directory, roles, base, device), placement or LocalWorkers(fork_server()))
    pool.registry = registry
    pool.start()
    try:
        await until(lambda: all(worker["up"] for worker in pool.workers))
        yield pool
    finally:
        await pool.close()
