"""All metrics of this process, as Prometheus scrapes them."""

import asyncio
from collections.abc import Iterator
from typing import cast

import structlog
from prometheus_client import Counter, exposition
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from sqlalchemy.pool import QueuePool

from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.instruments import REGISTRY
from learnloop_service.app.metrics import database, engine
from learnloop_service.app.metrics.database import DatabaseFigures
from learnloop_service.app.processes.engine import EngineState
from learnloop_service.app.resources import Resources
from learnloop_service.environment.first_line import first_line

_TIMEOUT_S = 2.0
"""Timeout of the database's figures. It leaves time to reply without them, because Prometheus waits for 10 s."""
_UNREAD = Counter(
    "learnloop_scrapes_without_database_total",
    "Scrapes that lack the database's figures, because it did not answer in time.",
    registry=REGISTRY,
)

log = structlog.get_logger(__name__)


class MetricsPage:
    """The metrics of a service or worker. It uses at most one connection of the pool, even for concurrent scrapes."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._turn = asyncio.Lock()

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page (OpenMetrics if the `Accept` header names it) and its content type."""
        everything = _ScrapeCollector([*self._of_process(), *await self._of_database()])
        # Rendering takes milliseconds, so a thread does it and the event loop can answer requests meanwhile.
        if "application/openmetrics-text" in accept:
            return await asyncio.to_thread(openmetrics.generate_latest, everything), openmetrics.CONTENT_TYPE_LATEST
        return await asyncio.to_thread(exposition.generate_latest, everything), exposition.CONTENT_TYPE_PLAIN_0_0_4

    async def _of_database(self) -> list[Metric]:
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._turn:
                figures: DatabaseFigures = await database.read(self._resources.database)
        except (TimeoutError, *DATABASE_DOWN) as error:
            _UNREAD.inc()
            log.warning("a scrape lacks the figures of the database", error=first_line(error))
            return []
        return list(figures.metrics())

    def _of_process(self) -> Iterator[Metric]:
        resources = self._resources
        yield _one("learnloop_database_up", "Whether the database answers.", resources.database_pulse.trouble is None)
        pool = cast(QueuePool, resources.database_engine.pool)
        yield _one(
            "learnloop_database_pool_size", "Connections that this process may open to the database.", pool.size()
        )
        yield _one("learnloop_database_pool_in_use", "Connections of the pool that are in use.", pool.checkedout())
        state = resources.engine.state
        if state is not EngineState.STOPPED:
            is_up = state in (EngineState.READY, EngineState.SHARED)
            yield from engine.metrics(resources.engine_name, is_up, resources.engine.health)


class _ScrapeCollector(Collector):
    """The metrics that this process counted and those read for this scrape."""

    def __init__(self, read: list[Metric]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield from REGISTRY.collect()
        yield from self._read


def _one(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=value)
