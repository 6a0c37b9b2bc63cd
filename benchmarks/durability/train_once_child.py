"""The process that `benchmarks.durability.train_once` kills; it trains and keeps its journal in files."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.training.backends import embedded, serverless
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import Backend, BackendUnavailable, ModelSpec
from learnloop_service.training.backends.local import backend as local
from learnloop_service.training.backends.serverless import ServerlessAccess
from learnloop_service.training.journal import IterationJournal
from learnloop_service.training.loop.train_step import TrainStep, request_for
from learnloop_service.training.types import Group, RunConfig

import_art()  # import once before forking

AGAIN = 3
"""Exit status of a process whose backend was unavailable."""
SETTLE_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Order:
    """What one process does. `dies_at` is a journal event in iteration `faulty`, such as "before train.intent"."""

    backend: str
    url: str
    key: str
    model: ModelSpec
    groups: Sequence[Group]
    directory: Path
    iterations: int
    faulty: int
    dies_at: str = ""


class FileJournal:
    """A journal with one file per entry, created atomically."""

    def __init__(self, order: Order) -> None:
        self._order = order

    async def kept(self, iteration: int) -> Mapping[str, str]:
        files = self._order.directory.glob(f"{iteration}:*")
        return {file.name.partition(":")[2].replace(":", "/"): file.read_text() for file in files}

    async def keep(self, iteration: int, name: str, value: str) -> None:
        self.keep_soon(iteration, name, value)

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        self._moment(iteration, f"before {name}")
        file = self._order.directory / f"{iteration}:{name.replace('/', ':')}"
        beside = self._order.directory / "new"
        beside.write_text(value)
        beside.rename(file)
        self._moment(iteration, f"after {name}")

    def _moment(self, iteration: int, moment: str) -> None:
        died = self._order.directory / "died"
        if (iteration, moment) == (self._order.faulty, self._order.dies_at) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(order: Order) -> None:
    """Drive the order's run from its journal to the end."""
    sys.exit(asyncio.run(_work(order)))


async def _work(order: Order) -> int:
    journal = FileJournal(order)
    backend = await _connect(order)
    try:
        policy, step = await backend.register(order.model), 0
        for iteration in range(1, order.iterations + 1):
            entries = await IterationJournal.open(journal, iteration)
            request = request_for(RunConfig(learning_rate=1e-3), order.groups, iteration, step)
            outcome = await TrainStep(policy, entries, step).take(request)
            step = outcome.step
    except BackendUnavailable:
        return AGAIN
    finally:
        await backend.close()
    return 0


async def _connect(order: Order) -> Backend:
    if order.backend == serverless.NAME:
        access = ServerlessAccess(
            order.key, order.url, settle_timeout_s=SETTLE_TIMEOUT_S, poll_s=0.02, request_timeout_s=30.0
        )
        return await serverless.connect(access)
    if order.backend == local.NAME:
        return await local.connect(order.url, order.key)
    return await embedded.connect(order.url, order.key)
