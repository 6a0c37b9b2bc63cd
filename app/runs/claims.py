"""Claims of runs, within the limits on how many are driven at the same time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.events.log import append
from learnloop_service.app.runs.cost import STORED_PRICE
from learnloop_service.app.runs.verdicts import verdict_on
from learnloop_service.training.backends.registry import engine_backend

UNOWNED: Mapping[str, Any] = {
    "owner": None,
    "lease_until": None,
    "phase": None,
    "phase_iteration": None,
    "phase_done": None,
    "phase_total": None,
}
"""Columns to set on a run that no worker drives."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum numbers of runs that are driven at the same time; None means no limit."""

    per_project: int | None = None
    per_backend: int | None = None


class RunClaims(Claims[Run]):
    """One worker's claims on runs."""

    table = Run
    noun = "run"
    append = staticmethod(append)
    started, released, failed = EventType.RUN_STARTED, EventType.RUN_RELEASED, EventType.RUN_FAILED
    unowned = UNOWNED

    def __init__(
        self,
        database: Database,
        worker: str,
        *,
        ttl_s: float,
        limits: Limits,
        backends: Sequence[str],
        engine: str,
        price_per_hour: float | None = None,
    ) -> None:
        """`backends` are those that the worker can drive; `price_per_hour` is its machine's, in US dollars;
        None: the stored one."""
        super().__init__(database, worker, ttl_s=ttl_s, engine=engine)
        self._limits = limits
        self._backends = list(backends)
        self._price_per_hour = price_per_hour

    def _extra_columns(self) -> Mapping[str, Any]:
        return {
            "engine": case((Run.backend == engine_backend(), self._engine), else_=None),
            "machine_price_per_hour": func.coalesce(
                Run.machine_price_per_hour, literal(self._price_per_hour, Double), STORED_PRICE
            ),
        }

    async def _final_data(self, tx: AsyncSession, id: str) -> Mapping[str, Any]:
        return await verdict_on(tx, id)

    def _conditions(self) -> list[ColumnElement[bool]]:
        """Return the limits as conditions. A running run that is taken over is already within them."""
        other = aliased(Run)
        allowed: list[ColumnElement[bool]] = [Run.backend.in_(self._backends)]
        for name, limit in (("project", self._limits.per_project), ("backend", self._limits.per_backend)):
            if limit is not None:
                beside = select(func.count()).where(
                    other.status == RunStatus.RUNNING,
                    getattr(other, name) == getattr(Run, name),
                    other.id != Run.id,
                )
                allowed.append(beside.correlate(Run).scalar_subquery() < limit)
        return allowed
