"""What users asked with their consent, and schedules that learn from it."""

from datetime import timedelta
from hashlib import sha256
from typing import Any

import httpx
from sqlalchemy import text, update

from learnloop_service.app.agent_sessions.calls import SessionCaller, SessionCalls
from learnloop_service.app.agent_sessions.canonical import canonical
from learnloop_service.app.agent_sessions.store import AgentSessions, PinnedModel, SessionSpec
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Schedule
from learnloop_service.training.rollout.agents.sessions import SessionOutcome
from tests.integration.app.agent_calls import answered

LIVE = PinnedModel("learnloop/live", "learnloop/m@0", 0, "embedded", None)
RUN: dict[str, Any] = {
    "environment": {"name": "agent", "config": {"runner": {"python": "tests.fakes.own_agents:replaying"}}},
    "source": {"sessions": {"model": "learnloop/live"}},
    "judge": {"name": "reported"},
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 2,
    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
}


def hashed(user: str) -> str:
    """Stands in for the hash of a user's key."""
    return sha256(user.encode()).hexdigest()


async def session_of(
    database: Database,
    user: str | None,
    question: str,
    *,
    days_ago: float = 3.0,
    may_train: bool = True,
    reward: float = 0.5,
    project: str = "learnloop",
    arm: str | None = None,
) -> str:
    """Return the id of a session in which a user asked something."""
    store = AgentSessions(database)
    session = (await store.open(SessionSpec(project, LIVE, timedelta(hours=1)))).row.id
    asked: Any = canonical({"messages": [{"role": "user", "content": question}]}, None)
    await answered(SessionCalls(database), SessionCaller(session), "no", asked)
    await store.end(LOCAL, session, SessionOutcome(reward=reward))
    values: dict[str, Any] = {"user_hash": user and hashed(user), "may_train": may_train, "arm": arm}
    values["ended_at"] = AgentSession.ended_at - timedelta(days=days_ago)
    async with database.begin() as tx:
        await tx.execute(update(AgentSession).where(AgentSession.id == session).values(values))
    return session


async def sessions_of(database: Database, users: int, each: int = 1, **more: Any) -> None:
    """Let that many users have asked something that many times."""
    for user in range(users):
        for number in range(each):
            await session_of(database, f"user{user}", f"Question {number} of {user}?", **more)


async def create(client: httpx.AsyncClient, **more: Any) -> Any:
    """Return a new schedule."""
    body = {"name": "nightly", "cron": "0 2 * * *", "run": RUN, "least_new_tasks": 3, **more}
    return (await client.post("/schedules", json=body)).raise_for_status().json()


async def make_due(database: Database, days: float = 1.0) -> None:
    """Let all schedules have been due since that many days ago, without anybody having looked."""
    async with database.begin() as tx:
        await tx.execute(update(Schedule).values(next_due_at=text(f"now() - interval '{days} days'")))
