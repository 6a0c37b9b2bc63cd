"""Runs whose emails are in the database, without anything having run."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Reflection, Trajectory
from tests.fakes.stored_request import stored_request, stored_run

NAMED = dict.fromkeys(("citations_read", "cited_product", "named_prospect", "named_company", "success"), True)


def email(citations: str = "ab") -> dict[str, Any]:
    """An outcome with an email that cites the nodes of these letters."""
    body = "Hi Tolu, a note for Velmor. Reports take the team 40 hours a week. Rellik cuts that. Shall we talk?"
    return NAMED | {"email": {"subject": "Rellik for Velmor", "body": body, "citations": list(citations)}}


async def make_run(
    database: Database, *, environment: str = "sales_email", graph: Any = None, project: str = "learnloop"
) -> str:
    """A completed run; its id."""
    request = stored_request(environment={"name": environment, "config": {} if graph is None else {"graph": graph}})
    more = {"environment": environment, "model_project": project, "iterations_total": 3}
    run = stored_run(status="completed", request=request, **more)
    async with database.begin() as tx:
        tx.add(run)
        return run.id


async def make_trajectory(
    database: Database, run_id: str | None, outcome: dict[str, Any], *, shown_after: int | None = None
) -> str:
    """A trajectory with this outcome, shown after that iteration if one is told; its id."""
    id = str(ULID())
    row: dict[str, Any] = {
        "id": id,
        "run_id": run_id,
        "kind": "ask" if shown_after is None else "showcase",
        "iteration": shown_after,
        "split": "train",
        "mode": "greedy",
        "model": "learnloop/a",
        "scenario_id": "train.0.0",
        "scenario": {"task": {"prospect": "Tolu Marend", "company": "Velmor", "goal": "book a call"}, "reference": {}},
        "messages": [],
        "tools": [],
        "outcome": outcome,
        "score_parts": {},
        "reward_parts": {},
        "turns": 3,
        "prompt_tokens": 10,
        "completion_tokens": 10,
        "seconds": 0.1,
        "started_at": datetime.now(UTC),
    }
    async with database.begin() as tx:
        await tx.execute(insert(Trajectory), [row])
        if shown_after is not None:
            shown: dict[str, Any] = {"run_id": run_id, "iteration": shown_after, "state": {}, "trajectory_id": id}
            await tx.execute(insert(Reflection), [shown])
    return id
