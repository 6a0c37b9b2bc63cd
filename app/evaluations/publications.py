"""Tracks which evaluations are to be published, and the results. All times are the database's.

A row's `published` is None (not requested), `due` with the number of attempts and the time of the next one, `published`
with the URLs, or `failed` with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import DateTime, cast, func, select, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob

MAX_ATTEMPTS = 5
NEW = {"state": "due", "attempts": 0, "next_at": "-infinity"}
"""State of an evaluation that has just completed."""
_STATE = EvaluationJob.published["state"].astext
_NEXT = cast(EvaluationJob.published["next_at"].astext, DateTime(timezone=True))


@dataclass(frozen=True, slots=True)
class Publications:
    """Evaluations to publish. Each call is one transaction."""

    database: Database

    async def claim(self, hidden_s: float) -> EvaluationJob | None:
        """Claim an evaluation that is due. No other worker gets it for `hidden_s` seconds."""
        due = (
            select(EvaluationJob)
            .where(_STATE == "due", func.now() >= _NEXT)
            .order_by(EvaluationJob.finished_at)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        async with self.database.begin() as tx:
            row = (await tx.execute(due)).scalar_one_or_none()
            if row is None:
                return None
            now = (await tx.execute(select(func.now()))).scalar_one()
            attempts = row.published["attempts"] + 1 if row.published else 1
            row.published = _due(attempts, now + timedelta(seconds=hidden_s))
            await tx.flush()
            tx.expunge(row)
            return row

    async def succeeded(self, id: str, urls: Mapping[str, str]) -> None:
        """Record that the evaluation is published, with the URL for each model."""
        await self._set(id, {"state": "published", "urls": dict(urls)})

    async def failed(self, job: EvaluationJob, error: str, retry_s: float) -> None:
        """Record a failed attempt. The next one is due after `retry_s` seconds, unless this was the last."""
        attempts = job.published["attempts"] if job.published else 1
        if attempts >= MAX_ATTEMPTS:
            await self._set(job.id, {"state": "failed", "error": error})
            return
        async with self.database.begin() as tx:
            now = (await tx.execute(select(func.now()))).scalar_one()
            due = {**_due(attempts, now + timedelta(seconds=retry_s)), "error": error}
            await tx.execute(update(EvaluationJob).where(EvaluationJob.id == job.id).values(published=due))

    async def _set(self, id: str, published: Mapping[str, Any]) -> None:
        async with self.database.begin() as tx:
            await tx.execute(update(EvaluationJob).where(EvaluationJob.id == id).values(published=dict(published)))


def _due(attempts: int, next_at: Any) -> dict[str, Any]:
    return {"state": "due", "attempts": attempts, "next_at": next_at.isoformat()}
