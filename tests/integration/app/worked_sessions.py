"""Sessions of agents that have worked."""

from datetime import timedelta
from typing import Any

from learnloop_service.app.agent_sessions.calls import SessionCaller, SessionCalls
from learnloop_service.app.agent_sessions.canonical import canonical
from learnloop_service.app.agent_sessions.store import AgentSessions, PinnedModel, SessionSpec
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.db.database import Database
from learnloop_service.training.rollout.agents.sessions import SessionOutcome
from tests.integration.app.agent_calls import answered

PROMOTED = PinnedModel("mail/agent", "mail/agent@3", 3, "embedded", None)


async def worked(
    database: Database, question: str, reward: float | None, project: str = "learnloop", may_train: bool = True
) -> str:
    """A session in which a tool was called once."""
    store, calls = AgentSessions(database), SessionCalls(database)
    session = (await store.open(SessionSpec(project, PROMOTED, timedelta(hours=1), may_train=may_train))).row.id
    asked: list[Any] = [{"role": "user", "content": question}]
    called = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    told = [{"role": "assistant", "content": None, "tool_calls": [called]}]
    found = [{"role": "tool", "tool_call_id": "c1", "content": "m1"}]
    for messages in (asked, [*asked, *told, *found]):
        await answered(calls, SessionCaller(session), "hm", canonical({"messages": messages}, None))
    await store.end(
        LOCAL, session, SessionOutcome(reward=reward) if reward is not None else SessionOutcome(reason="unknown")
    )
    return session
