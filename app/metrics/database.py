"""Prometheus metrics from the database. They are the same in every process, so they must not be summed.

Each statement reads an index that holds only open items, or one entry per run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.claims.lease import lapsed
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Event, Release, Run, SavedDiagnosis, WebhookDelivery
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.release_state import ReleaseState
from learnloop_service.app.domain.run_state import LIVE, RunStatus
from learnloop_service.training.diagnosis.diagnosis import Severity


@dataclass(frozen=True, slots=True)
class DatabaseFigures:
    """Counts, and ages in seconds by the database's clock."""

    runs: dict[str, int]
    """By status, including statuses without runs."""
    waiting: int
    """Number of running runs that are waiting, for example for their backend."""
    orphaned: int
    """Number of running runs whose lease has expired."""
    queue_age_s: float
    """Waiting time of the queued run that has waited longest; 0.0 if there is none."""
    diagnosed: dict[str, int]
    """Number of live runs with an active diagnosis, by severity."""
    evaluations: dict[str, int]
    releases: dict[str, int]
    """By state, including states without releases."""
    deliveries: dict[str, int]
    """Numbers of pending deliveries and dead letters. Delivered ones are too many to count."""
    webhook_lag_s: float
    """Age of the oldest pending delivery; 0.0 if there is none."""

    def metrics(self) -> Iterator[Metric]:
        """Yield the figures as Prometheus metrics."""
        yield _by("status", "learnloop_runs", "Runs by status.", self.runs)
        yield _one("learnloop_runs_waiting", "Running runs that wait, such as for their backend.", self.waiting)
        yield _one(
            "learnloop_runs_orphaned",
            "Running runs whose worker has let its lease lapse; no worker drives them.",
            self.orphaned,
        )
        yield _one(
            "learnloop_queue_age_seconds", "How long the longest waiting queued run has waited.", self.queue_age_s
        )
        yield _by(
            "severity",
            "learnloop_runs_diagnosed",
            "Queued, running and paused runs with an active diagnosis of that severity.",
            self.diagnosed,
        )
        yield _by("status", "learnloop_evaluations", "Evaluations by status.", self.evaluations)
        yield _by("state", "learnloop_releases", "Releases by state.", self.releases)
        yield _by("state", "learnloop_webhook_deliveries", "Deliveries that wait or have failed.", self.deliveries)
        yield _one(
            "learnloop_webhook_lag_seconds", "Age of the oldest delivery that is not settled.", self.webhook_lag_s
        )


async def read(database: Database) -> DatabaseFigures:
    """Read the figures in one transaction on one connection."""
    async with database() as tx:
        runs = await _counts(tx, Run.status, RunStatus)
        waiting, orphaned = (await tx.execute(_RUNNING)).one()
        age = (await tx.execute(_QUEUE_AGE)).scalar_one()
        named = {severity: count for severity, count in (await tx.execute(_DIAGNOSED)).all()}  # noqa: C416 - as above
        evaluations = await _counts(tx, EvaluationJob.status, EvaluationStatus)
        releases = await _counts(tx, Release.state, ReleaseState)
        pending, lag = (await tx.execute(_PENDING)).one()
        failed = (await tx.execute(_FAILED)).scalar_one()
    deliveries = {str(DeliveryState.PENDING): pending, str(DeliveryState.FAILED): failed}
    diagnosed = {str(severity): 0 for severity in Severity} | named
    age_s, lag_s = float(age or 0), float(lag or 0)
    return DatabaseFigures(runs, waiting, orphaned, age_s, diagnosed, evaluations, releases, deliveries, lag_s)


async def _counts(tx: AsyncSession, column: InstrumentedAttribute[str], states: Iterable[StrEnum]) -> dict[str, int]:
    counts = await tx.execute(select(column, func.count()).group_by(column))
    return {str(state): 0 for state in states} | {status: count for status, count in counts.all()}  # noqa: C416 - rows are no tuples to mypy


_RUNNING = select(
    func.count().filter(Run.wait_reason.is_not(None)),
    func.count().filter(lapsed(Run.lease_until)),
).where(Run.status == RunStatus.RUNNING)
_QUEUE_AGE = (
    # A queued run's last event put it into the queue, possibly not for the first time.
    select(func.extract("epoch", func.max(func.clock_timestamp() - func.coalesce(Event.occurred_at, Run.created_at))))
    .select_from(Run)
    .outerjoin(Event, and_(Event.run_id == Run.id, Event.seq == Run.event_seq))
    .where(Run.status == RunStatus.QUEUED)
)
_DIAGNOSED = (
    select(SavedDiagnosis.severity, func.count(func.distinct(SavedDiagnosis.run_id)))
    .join(Run, Run.id == SavedDiagnosis.run_id)
    .where(SavedDiagnosis.state == "active", Run.status.in_(sorted(LIVE)))
    .group_by(SavedDiagnosis.severity)
)
_FAILED = select(func.count()).where(WebhookDelivery.state == DeliveryState.FAILED)
_PENDING = select(
    func.count(), func.extract("epoch", func.max(func.clock_timestamp() - WebhookDelivery.created_at))
).where(WebhookDelivery.state == DeliveryState.PENDING)


def _one(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=value)


def _by(label: str, name: str, help: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=[label])
    for which, value in values.items():
        family.add_metric([which], value)
    return family
