"""How a `Runner` drives and ends evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learnloop_service.app import instruments
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.evaluations.claims import EvaluationClaims
from learnloop_service.app.evaluations.report import models_without_figures
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.store import PendingRequests
from learnloop_service.app.worker.evaluations.driver import EvaluationDriver
from learnloop_service.app.worker.evaluations.publisher import EvaluationPublisher
from learnloop_service.app.worker.runner import Activity, WorkFailed
from learnloop_service.training.types import IterationProgress


@dataclass(frozen=True)
class EvaluationJobs:
    """`learnloop_service.app.worker.runner.Jobs` for evaluations."""

    store: EvaluationStore
    claims: EvaluationClaims
    driver: EvaluationDriver
    publisher: EvaluationPublisher
    slots: int
    instruments = instruments.EVALUATIONS

    async def drive(self, row: EvaluationJob, lease: Lease[EvaluationJob], activity: Activity) -> dict[str, Any]:
        report = await self.driver.drive(row, lease, activity.note, activity.wait)
        if without := models_without_figures(report):
            raise WorkFailed("; ".join(without.values()), report)
        return report

    async def report(
        self, lease: Lease[EvaluationJob], progress: IterationProgress | None, wait_reason: str | None, driven_s: float
    ) -> PendingRequests:
        return PendingRequests(cancel=await self.store.heartbeat(lease, wait_reason, driven_s), pause=False)

    def pause_reason(self, error: BaseException) -> str | None:
        return None

    async def suspend(
        self, lease: Lease[EvaluationJob], reason: str, shortage: Mapping[str, Any] | None = None
    ) -> None:
        await self.store.suspend(lease, reason, shortage)

    async def finish(
        self, lease: Lease[EvaluationJob], status: RunStatus, error: str | None, result: dict[str, Any] | None
    ) -> None:
        ended = EvaluationStatus(status)
        await self.store.finish(lease, ended, error=error, report=result, publish=self.publisher.configured)
        self.publisher.wake()
