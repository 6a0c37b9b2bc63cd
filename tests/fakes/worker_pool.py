"""A pool of real worker processes over a tiny random model, driven from a test's event loop."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.conditions import until
from tests.fakes.forked_engine import fork_server
from training.engine.computing import Steps, TrainingTask
from training.engine.engine import TrainResult
from training.engine.registry.registry import Registry
from training.engine.tokenizers import Tokenizers
from training.engine.trainer.grpo_step import Progress
from training.engine.workers.link import Placement, WorkerSpec
from training.engine.workers.local import LocalWorkers
from training.engine.workers.pool import WorkerPool

MICRO_BATCH_TOKENS = 60


class Pool(WorkerPool):
    """With what tests ask of it."""

    registry: Registry

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What `/health` says of each."""
        return list(self.details["workers"])

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        found = re.search(r"\d+", str(self.workers[worker]["place"]))
        assert found is not None
        return int(found[0])

    def kill(self, worker: int) -> None:
        """As the kernel does when memory runs out."""
        os.kill(self.pid(worker), signal.SIGKILL)

    def busiest(self) -> int:
        """The worker that has sampled most."""
        sampled = [each.get("figures", {}).get("sampled_tokens", 0) for each in self.workers]
        return sampled.index(max(sampled))

    async def trained(self, steps: Steps) -> TrainResult:
        """One training to its end. Raises its error."""
        outcome = await Following(self, steps).end
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Following:
    """A training whose progress and end can be awaited."""

    def __init__(self, pool: WorkerPool, steps: Steps) -> None:
        self.seen: list[Progress] = []
        self.begun = asyncio.Event()
        """A micro-batch is done."""
        self.end: asyncio.Future[TrainResult | Exception] = asyncio.get_running_loop().create_future()
        pool.train(TrainingTask(steps, lambda: None, self._progressed, self.end.set_result))

    def _progressed(self, progress: Progress) -> None:
        self.seen.append(progress)
        self.begun.set()


def specs(directory: Path, roles: Sequence[tuple[bool, bool]], base: Path, device: str = "cpu") -> list[WorkerSpec]:
    """Workers that sample, and that train, over the data in `directory`."""
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
            train_threads=None,
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
    """A pool whose workers are up, with the base model `tiny`; two that do everything unless told otherwise."""
    registry = Registry(directory, {"tiny": base})
    pool = Pool(registry, Tokenizers(), specs(directory, roles, base, device), placement or LocalWorkers(fork_server()))
    pool.registry = registry
    pool.start()
    try:
        await until(lambda: all(each["up"] for each in pool.workers))
        yield pool
    finally:
        await pool.close()
