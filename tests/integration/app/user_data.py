"""A user's traces in the whole database, for tests of what is left of them."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import (
    AgentSession,
    Checkpoint,
    Document,
    Feedback,
    Promotion,
    Release,
    ReleaseObservation,
    ReleaseUnit,
    Run,
    SessionCall,
    Trajectory,
    UserScenario,
)
from learnloop_service.app.security.user_hash import UserHasher

SECRET = "a key for tests, of 32 characters"
SHA = "5" * 64
WHEN = datetime(2026, 3, 14, 2, tzinfo=UTC)


def hash_of(user: str) -> str:
    """The service's hash of a user's key."""
    return UserHasher(SECRET.encode()).hash_of(user)


def _id(prefix: str, user: str) -> str:
    return f"{prefix}{user}".ljust(26, "0")


async def everything(database: Database, *users: str, project: str = "mail") -> None:
    """Let each user have asked, been asked about, been part of a release, and become a task of a run that ended."""
    async with database.begin() as tx:
        stable = {"project": project, "name": "live", "backend": "embedded", "model_name": "m", "step": 1}
        await tx.execute(insert(Promotion), [stable | {"actor": "local"}])
        promotion_id = (await tx.execute(select(Promotion.id))).scalar_one()
        arms = {"state": "rolled_back", "salt": b"0", "unit": "user", "share": 0.05, "rules": {}, "baseline": {}}
        candidate = {"backend": "embedded", "model_name": "m", "step": 2, "actor": "local"}
        names = {"id": "release", "project": project, "name": "live", "promotion_id": promotion_id}
        await tx.execute(insert(Release), [names | arms | candidate])
        for id, name, base in (
            ("nightly", "nightly-1", "learnloop/tiny"),
            ("heir", "nightly-2", f"{project}/nightly-1@1"),
            ("other", "other", "learnloop/tiny"),
        ):
            await tx.execute(insert(Run), [_run(id, name, base, project, SHA if id == "nightly" else "6" * 64)])
            steps = [{"run_id": id, "step": step, "iteration": step, "is_best": False} for step in (0, 1)]
            await tx.execute(insert(Checkpoint), steps)
        rows = [{"id": f"session.{user}", "split": "train", "task": {"messages": [f"{user} says"]}} for user in users]
        await tx.execute(insert(Document), [{"project": project, "sha256": SHA, "kind": "scenarios", "content": rows}])
        for user in users:
            await _one(tx, user, project)


async def _one(tx: Any, user: str, project: str) -> None:
    who = {"user_hash": hash_of(user), "may_train": True}
    session = {"id": _id("S", user), "project": project, "asked_model": "live", "model": "mail/m@1", "step": 1}
    limits = {"backend": "embedded", "seed": 1, "explicit_restart": False, "expires_at": WHEN, "labels": {}}
    await tx.execute(
        insert(AgentSession),
        [session | limits | who | {"state": "ended", "outcome": {"output": user}, "warnings": []}],
    )
    call = {"session_id": session["id"], "number": 1, "digest": "d", "occurrence": 0, "protocol": "chat"}
    await tx.execute(insert(SessionCall), [call | {"request": user.encode(), "seed": 1}])
    for id, more in (
        (f"ask-{user}", {"kind": "ask", "project": project, "asked_as": f"{project}/live", **who}),
        (f"rollout-{user}", {"kind": "train", "run_id": "nightly", "iteration": 1}),
    ):
        await tx.execute(insert(Trajectory), [_trajectory(id, user) | more])
    subjects = {"session_id": session["id"], "trajectory_id": f"ask-{user}", "user_hash": hash_of(user)}
    for number, (column, subject) in enumerate(subjects.items()):
        said = {"id": _id(f"F{number}", user), "project": project, "event_id": f"{user}{number}", "comment": user}
        await tx.execute(
            insert(Feedback),
            [said | {column: subject} | {"type": "thumbs_up", "confidence": 1, "source": "api", "occurred_at": WHEN}],
        )
    unit = {"release_id": "release", "unit": who["user_hash"], "arm": "stable", "probability": 0.5, "stage": 0}
    await tx.execute(insert(ReleaseUnit), [unit | {"exposed_at": WHEN}])
    await tx.execute(insert(ReleaseObservation), [unit | {"values": {}, "observed_at": WHEN}])
    link = {"project": project, "sha256": SHA, "scenario_id": f"session.{user}", "user_hash": who["user_hash"]}
    await tx.execute(insert(UserScenario), [link])


def _run(id: str, name: str, base: str, project: str, sha256: str) -> dict[str, Any]:
    request = {
        "environment": {"name": "agent", "config": {"scenarios": {"sha256": sha256, "count": 2}}},
        "judge": {"name": "ruler"},
        "model": {"project": project, "name": name, "base_model": base},
    }
    return {
        "id": id,
        "status": "completed",
        "request": request,
        "environment": "agent",
        "judge": "ruler",
        "backend": "embedded",
        "model_project": project,
        "model_name": name,
        "base_model": base,
        "iterations_total": 1,
    }


def _trajectory(id: str, user: str) -> dict[str, Any]:
    figures = {"turns": 1, "prompt_tokens": 1, "completion_tokens": 1, "seconds": 1.0, "started_at": WHEN}
    documents = {"scenario": {"task": user}, "messages": [user], "tools": [], "outcome": {"answer": user}}
    plain = {"split": "train", "mode": "sampled", "model": "mail/m", "scenario_id": f"session.{user}"}
    return {"id": id, "score_parts": {}, "reward_parts": {}} | plain | documents | figures
