"""Evaluations that code in the service starts, as schedules and improvements do, with a real learn loop and a scripted
model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.evaluation_state import TERMINAL, EvaluationStatus
from learnloop_service.app.domain.stored_evaluation import Comparison
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.main import create_app
from learnloop_service.app.model_registry.resolver import ModelResolver, base_models
from learnloop_service.app.operations.start.evaluation import EvaluationStarter, StartedEvaluation
from learnloop_service.app.schemas.evaluations import EvaluationRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.scripted_chat import ScriptedChat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import settings_for

CALLER = Caller("improvement:1", "learnloop", frozenset(Scope))


@dataclass(frozen=True)
class StartingService:
    """A service, and what its own code starts evaluations with."""

    starter: EvaluationStarter
    database: Database
    client: httpx.AsyncClient

    async def start(
        self,
        request: Json,
        kind: type[Comparison] = Comparison,
        *,
        refusal: Exception | None = None,
        **fields: Any,
    ) -> str:
        """Start an evaluation, and return its id. `refusal` is raised in the transaction that creates it."""

        async def save(tx: AsyncSession, started: StartedEvaluation) -> None:
            if refusal is not None:
                raise refusal

        body = EvaluationRequest.model_validate(request)
        return (await self.starter.start(str(ULID()), body, CALLER, save, kind, **fields)).job.id

    async def ended(self, id: str) -> EvaluationJob:
        """Return the evaluation once it has ended."""
        store = EvaluationStore(self.database)
        job = await answered(lambda: store.get(id), lambda job: job.status in (*TERMINAL, EvaluationStatus.PAUSED))
        assert isinstance(job, EvaluationJob)
        return job


@asynccontextmanager
async def starting_service(data_dir: Path, database_url: str, chat: ScriptedChat) -> AsyncIterator[StartingService]:
    """A service whose models are scripted."""
    settings = settings_for(data_dir, database_url, engine_url=chat.url.removesuffix("/v1"))
    app = create_app(settings, connect=ScriptedBackend(chat.url).connect, learn=learn_loop)
    async with app.router.lifespan_context(app):
        service = app.state.service
        models = ModelResolver(service.database, service.engine, service.connect, base_models(settings))
        starter = EvaluationStarter(service, service.store, models, service.runner.wake)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            yield StartingService(starter, service.database, client)
