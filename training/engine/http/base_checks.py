"""Checks base models before their first use, each once, without holding up other requests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from learnloop_service.training.bases.child_processes import NotChecked, check
from learnloop_service.training.bases.verdicts import BaseVerdict
from learnloop_service.training.engine.registry.base_models import Bases

_AT_A_TIME = 2

log = structlog.get_logger(__name__)


class BaseChecks:
    """The checks in progress, for the event loop. Verdicts are kept in `Bases.verdicts`."""

    def __init__(self, bases: Bases) -> None:
        self._bases = bases
        self._running: dict[Path, asyncio.Task[BaseVerdict]] = {}
        # The usual threads also answer other requests, and a check can take a minute.
        self._threads = ThreadPoolExecutor(_AT_A_TIME, "base-check")

    async def admit(self, name: str) -> None:
        """Check the base model of that name if it was not checked yet; other names are ignored. Raises BadBaseModel."""
        if (directory := self._bases.unchecked(name)) is None:
            return
        task = self._running.get(directory)
        if task is None:
            task = self._running[directory] = asyncio.create_task(self._check(name, directory))
            task.add_done_callback(lambda _: self._running.pop(directory, None))
        # Shielded, because other requests may be waiting for the same check.
        self._bases.require(name, (await asyncio.shield(task)).fault)

    async def _check(self, name: str, directory: Path) -> BaseVerdict:
        log.info("base model is being checked", base_model=name)
        try:
            verdict = await asyncio.get_running_loop().run_in_executor(self._threads, check, directory)
        except NotChecked as error:
            return BaseVerdict(f"it could not be checked: {error}")
        self._bases.verdicts.keep(directory, verdict)
        log.info("base model checked", base_model=name, fault=verdict.fault)
        return verdict
