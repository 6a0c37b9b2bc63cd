"""Sessions that users were served, and a scripted policy that learns from them and notes what it gets."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import func, update

from learnloop_service.app.agent_sessions import served as served_answers
from learnloop_service.app.agent_sessions.calls import SessionCaller, SessionCalls
from learnloop_service.app.agent_sessions.canonical import canonical
from learnloop_service.app.agent_sessions.store import AgentSessions, PinnedModel, SessionSpec
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Promotion
from learnloop_service.training.backends.base import ModelSpec, Policy, TrainOutcome
from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.rollout.agents.sessions import SessionOutcome
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy
from tests.fakes.stored_request import stored_request, stored_run
from tests.integration.app.agent_calls import begun, completion
from tests.integration.app.scheduled import hashed
from tests.integration.app.served import served, settings_for
from tests.opened_database import opened_database

CHAMPION = "learnloop/m@0"
SOURCE: dict[str, Any] = {
    "train_on": "answers",
    "model": "learnloop/live",
    "outcome": {"session_reward": [0, 1]},
    "window_hours": 24,
}
STRANGE = 9
"""A token that is much likelier for the run's policy than it was for the checkpoint that sampled it."""
BODY: dict[str, Any] = {"source": {"sessions": SOURCE}, "iterations": 2}


class MovingPolicy(ScriptedPolicy):
    """Each step moves every token by that many nats; `scored` is what it scored."""

    moves: Mapping[int, float] = {}
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """What happens while the first step is trained."""

    def __init__(self, model: ModelSpec, endpoint_url: str) -> None:
        super().__init__(model, endpoint_url)
        self.scored: list[tuple[int, Sequence[TokenSequence]]] = []

    async def score_sequences(self, step: int, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        self.scored.append((step, sequences))
        return [[value + self._moved(id, step) for id, value in _sampled(sequence)] for sequence in sequences]

    def _moved(self, id: int, step: int) -> float:
        return 30.0 if id == STRANGE else step * self.moves.get(id, 0.0)

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        if self.meanwhile is not None and expected_step == 0:
            await self.meanwhile()
        return await super().follow(job_id, expected_step)

    async def reply_logprobs(self, *_: Any) -> list[float]:
        raise AssertionError("nothing is scored this way")


def _sampled(sequence: TokenSequence) -> list[tuple[int, float]]:
    return [(sequence.ids[at], value) for at, value in zip(sequence.trained, sequence.logprobs, strict=True)]


class MovingBackend(ScriptedBackend):
    """Whose policies score."""

    def __init__(
        self, moves: Mapping[int, float] | None = None, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        super().__init__()
        self.moves, self.meanwhile = moves or {}, meanwhile

    async def register(self, model: ModelSpec) -> Policy:
        if model not in self.policies:
            policy = self.policies[model] = MovingPolicy(model, self.endpoint_url)
            policy.moves, policy.meanwhile = self.moves, self.meanwhile
        return self.policies[model]

    def policy(self, name: str) -> MovingPolicy:
        [policy] = [policy for model, policy in self.policies.items() if model.name == name]
        assert isinstance(policy, MovingPolicy)
        return policy


@pytest.fixture
def few_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of answers is enough."""
    for name, least in {"LEAST_ANSWERS": 4, "LEAST_USERS": 2, "LEAST_AT_END": 1}.items():
        monkeypatch.setattr(served_answers, name, least)


@asynccontextmanager
async def learning_service(
    data_dir: Path, database_url: str, backend: MovingBackend, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A service whose name `learnloop/live` has the checkpoint CHAMPION."""
    async with served(settings_for(data_dir, database_url, **more), cast(Any, learn_loop), backend) as client:
        await backend.register(ModelSpec("learnloop", "m", "learnloop/tiny"))
        names = {"model_project": "learnloop", "model_name": "m", "base_model": "learnloop/tiny"}
        request = stored_request(model={"project": "learnloop", "name": "m", "base_model": "learnloop/tiny"})
        promotion = {"project": "learnloop", "name": "live", "backend": "embedded", "model_name": "m", "step": 0}
        async with opened_database(database_url) as database, database.begin() as tx:
            tx.add(stored_run(status="completed", request=request, backend="embedded", **names))
            tx.add(Promotion(**promotion, actor="local"))
        yield client


async def serve(
    database: Database,
    user: str | None,
    reward: float | None = 1.0,
    *,
    model: str = CHAMPION,
    backend: str = "embedded",
    days_ago: float = 10.0,
    may_train: bool = True,
    calls: Sequence[Mapping[str, Any]] = ({},),
    ids: Sequence[int] = (5, 6),
    is_exact: bool = True,
    question: str = "Question?",
) -> str:
    """Return the id of a session in which a user was answered with these tokens, once for each of the parameters."""
    store, recorded = AgentSessions(database), SessionCalls(database)
    pinned = PinnedModel("learnloop/live", model, 0, backend, None)
    session = (await store.open(SessionSpec("learnloop", pinned, timedelta(hours=1), may_train=may_train))).row.id
    for number, parameters in enumerate(calls):
        asked = {"role": "user", "content": f"{question} {number}"}
        call = await begun(recorded, SessionCaller(session), canonical({"messages": [asked], **parameters}, None))
        reply = completion("no", *ids)
        await recorded.answer(call, reply if is_exact else {**reply, "prompt_token_ids": None})
        await recorded.finish(call, delivered=True)
    if reward is not None:
        await store.end(LOCAL, session, SessionOutcome(reward=reward))
    opened = func.now() - timedelta(days=days_ago)
    values: dict[str, Any] = {"user_hash": user and hashed(user), "opened_at": opened}
    values["ended_at"] = opened + timedelta(hours=1)
    if reward is None:
        values["state"] = "expired"
    async with database.begin() as tx:
        await tx.execute(update(AgentSession).where(AgentSession.id == session).values(values))
    return session


async def serve_many(database: Database, users: int, **more: Any) -> list[str]:
    """Let that many users have been answered once, every other one well."""
    return [await serve(database, f"user{user}", user % 2, ids=(5 + user % 2, 7), **more) for user in range(users)]
