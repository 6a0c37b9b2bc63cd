"""The state of driving an evaluation, whatever its kind."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from learnloop_service.app.aio.retry import Result
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.clock import DatabaseTime
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import Evaluation
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.budget import Meter
from learnloop_service.app.worker.driven import Patience, query
from learnloop_service.app.worker.evaluations.budget import EvaluationSpending
from learnloop_service.environment.base import Environment
from learnloop_service.judges.prices import Price
from learnloop_service.training.phases import Phase
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.types import IterationProgress


@dataclass
class DriveState:
    """State of driving one evaluation. It survives retries after the backend was unavailable."""

    job: EvaluationJob
    request: Evaluation
    store: EvaluationStore
    lease: Lease[EvaluationJob]
    main_loop: asyncio.AbstractEventLoop
    meter: Meter
    prices: Sequence[Price | None]
    note: Callable[[IterationProgress], None]
    patience: Patience
    saved_count: int
    """Number of saved rollouts or verdicts."""

    async def query(self, act: Callable[[], Awaitable[Result]]) -> Result:
        """Use the database on the service's event loop, and retry while it is down."""
        return await query(self.main_loop, act)

    def saved(self, rollouts: int = 0) -> None:
        """Record that rollouts or verdicts were saved, which is progress."""
        self.saved_count += rollouts
        self.patience.progressed()
        self.note(IterationProgress(0, Phase.EVALUATE, self.saved_count, self.request.slots))


@dataclass(frozen=True)
class OpenedEvaluation:
    """An evaluation whose environment is open."""

    state: DriveState
    environment: Environment
    budget: EvaluationSpending
    gate: asyncio.Semaphore
    """Limits how many of its rollouts or judgements are made at the same time."""
    clock: DatabaseTime
    prompts: Sequence[Prompt | None]
    """The prompt of each model; None for the environment's texts."""
