"""How a `Runner` drives and ends runs and evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learnloop_service.app import instruments
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Run
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.evaluations.claims import EvaluationClaims
from learnloop_service.app.evaluations.report import models_without_figures
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.processes.engine import EngineUnavailable
from learnloop_service.app.results.summary import summarise
from learnloop_service.app.runs.claims import RunClaims
from learnloop_service.app.runs.diagnoses import DiagnosisStop
from learnloop_service.app.runs.no_signal import NoSignalStop
from learnloop_service.app.runs.store import PendingRequests, RunStore
from learnloop_service.app.worker.drive import Driver
from learnloop_service.app.worker.evaluations.driver import EvaluationDriver
from learnloop_service.app.worker.evaluations.publisher import EvaluationPublisher
from learnloop_service.app.worker.runner import Activity, WorkFailed
from learnloop_service.training.backends.base import BackendUnavailable
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


@dataclass(frozen=True)
class RunJobs:
    """`learnloop_service.app.worker.runner.Jobs` for runs."""

    database: Database
    claims: RunClaims
    driver: Driver
    slots: int
    instruments = instruments.RUNS

    async def drive(self, row: Run, lease: Lease[Run], activity: Activity) -> None:
        await self.driver.drive(row, lease, activity.note, activity.wait, activity.lose)

    async def report(
        self, lease: Lease[Run], progress: IterationProgress | None, wait_reason: str | None, driven_s: float
    ) -> PendingRequests:
        return await RunStore(self.database).heartbeat(lease, progress, wait_reason)

    def pause_reason(self, error: BaseException) -> str | None:
        if isinstance(error, DiagnosisStop) or (isinstance(error, NoSignalStop) and error.rule.action == "pause"):
            return f"{error}; resume the run to continue it nevertheless"
        if isinstance(error, EngineUnavailable | BackendUnavailable):
            return f"{error}; resume the run when that is fixed"
        return None

    async def suspend(self, lease: Lease[Run], reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        await RunStore(self.database).suspend(lease, reason, shortage)

    async def finish(self, lease: Lease[Run], status: RunStatus, error: str | None, result: None) -> None:
        completed = status is RunStatus.COMPLETED
        await self.driver.results.write(lease.id, completed=completed)
        summary = await summarise(self.database, lease.id) if completed else None
        await RunStore(self.database).finish(lease, status, error=error, summary=summary)
