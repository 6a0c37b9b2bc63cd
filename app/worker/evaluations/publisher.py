"""Publishes completed evaluations elsewhere, one at a time.

A package says where to, with an entry point in the group `learnloop.publishers` that names a function of the service's
settings, which returns a Publisher, or None if they do not ask for it. The first one publishes.

The database records which evaluations are due (app/evaluations/publications.py), so if a worker dies, another one
publishes the rest. Publishing starts after an evaluation has completed, and does not change it.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import structlog

from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import Slot
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.evaluations.publications import Publications
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.redaction import Redactor, secrets_of
from learnloop_service.environment import plugins
from learnloop_service.environment.first_line import first_line

GROUP = "learnloop.publishers"
TIMEOUT_S = 600.0
"""Longest time that publishing an evaluation can take."""
_POLL_S = 30.0
_RETRY_S = 60.0

log = structlog.get_logger(__name__)


class NotPublished(Exception):
    """Raised when an evaluation did not arrive completely. The message says why."""


class Publisher(Protocol):
    """A place that evaluations are published to."""

    name: str
    """What logs call it."""

    async def publish(self, job: EvaluationJob, rows: Mapping[Slot, Any]) -> dict[str, str]:
        """Publish an evaluation with its rollouts, and return the URL for each model. Raises NotPublished, or
        OSError."""


def publishers(settings: Settings) -> Iterator[Publisher]:
    """Yield the places that the settings name. A package that cannot be loaded is logged and left out."""
    for point in plugins.registered(GROUP).values():
        try:
            if (publisher := plugins.build("publisher", point, settings)) is not None:
                yield publisher
        except (plugins.PluginFault, ValueError) as error:
            log.error("evaluations are not published", publisher=point.name, error=str(error))


class EvaluationPublisher:
    """Publishes for one worker, if a project is configured."""

    def __init__(self, store: EvaluationStore, publications: Publications, settings: Settings) -> None:
        self._store = store
        self._publications = publications
        self._to = next(publishers(settings), None)
        self._redactor = Redactor(secrets_of(settings))
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def configured(self) -> bool:
        """Whether there is a place to publish to."""
        return self._to is not None

    def start(self) -> None:
        """Start publishing what is due."""
        if self._to is not None:
            self._task = asyncio.create_task(self._publish_forever(self._to), name="evaluation-publisher")

    def wake(self) -> None:
        """Look for evaluations to publish now."""
        self._wake.set()

    async def close(self) -> None:
        """Stop. The next worker publishes what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _publish_forever(self, to: Publisher) -> None:
        repeated = RepeatedLog(log)
        while True:
            self._wake.clear()
            try:
                if (job := await self._publications.claim(2 * TIMEOUT_S)) is not None:
                    await self._attempt(to, job)
                    continue
            except DATABASE_DOWN as error:
                repeated.warning("database unavailable, nothing is published", error=first_line(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _attempt(self, to: Publisher, job: EvaluationJob) -> None:
        try:
            urls = await to.publish(job, await self._store.rows(job.id))
        except (NotPublished, OSError) as error:
            why = self._redactor.clean_text(str(error) or type(error).__name__)
            log.warning(f"evaluation not published to {to.name}", evaluation_id=job.id, error=why)
            await self._publications.failed(job, why, _RETRY_S)
            return
        log.info(f"evaluation published to {to.name}", evaluation_id=job.id)
        await self._publications.succeeded(job.id, urls)
