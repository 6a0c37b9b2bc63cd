"""An improvement with two prompts and real evaluations, on which nothing works."""

from typing import Any

import httpx
from ulid import ULID

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Candidate, Improvement
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.shares import wilson
from tests.integration.app.ended_evaluations import ended

TASKS = 8
_FACTS = {"oracle": 24, "trainable": True, "iterations_after_imitation": None}
_SHARES = {"success": 0.2, "solved_once": 0.5, "groups_differ": 0.4, "inconsistent": 0.1}
_PILOT = {"tasks": 64, "samples": 8, "seconds": 0.5, "tokens": 400, **_SHARES}


def _figures(solved: int) -> dict[str, Json]:
    low, high = wilson(solved / TASKS, TASKS)
    return {
        "success": {"mean": solved / TASKS, "low": low, "high": high},
        "tokens": 400.0,
        "seconds": 0.5,
        "usd": None,
    }


async def _evaluated(client: httpx.AsyncClient, models: Json, **more: Json) -> str:
    """The id of an evaluation of validation tasks that has ended."""
    body = {"models": models, "split": "validation", "scenarios": TASKS, **more}
    id: str = (await client.post("/evaluations", json=body)).raise_for_status().json()["evaluation_id"]
    await ended(client, id)
    return id


async def stored_improvement(
    client: httpx.AsyncClient, database_url: str, status: str = "reached", best: Any = None, **values: Any
) -> str:
    """The id of an improvement that accepted the newest stored prompt and refused the one before; `best` and `values`
    are further columns of the accepted candidate and of the improvement."""
    newest, before = (await client.get("/prompts")).raise_for_status().json()["items"]
    as_it_is = {"model": "learnloop/tiny", "label": "as it is", "prompt": None}
    first = await _evaluated(client, [as_it_is])
    gate = await _evaluated(client, [as_it_is, {"prompt": newest["sha256"], "label": "2 prompt"}], gate={})
    references = [{name: prompt[name] for name in ("sha256", "name", "version")} for prompt in (before, newest)]
    request = ImprovementRequest(target=0.9).model_dump(mode="json", by_alias=True)
    request |= {"environment": {"name": "email_search", "config": {}}, "validation": TASKS, "test": TASKS}
    success = {"0": _figures(0)["success"], "2": _figures(TASKS)["success"]}
    fields = {
        "status": status,
        "project": "learnloop",
        "request": request,
        "facts": _FACTS,
        "actor": "local",
        "champion": 2,
        "pilot": {**_PILOT, "evaluation_id": first},
        "final": {"success": success, "evaluation_ids": [gate], "champion": 2},
    }
    candidates: list[dict[str, Any]] = [
        {"rung": "as_it_is", "state": "accepted", "figures": _figures(0), "gate_id": first},
        {
            "rung": "prompt",
            "state": "refused",
            "reason": "not better on 4 training tasks (0 won, 0 lost)",
            "prompt": references[0],
            "evidence": {"training": {"won": 0, "lost": 0, "tasks": 4}},
        },
        {
            "rung": "prompt",
            "state": "accepted",
            "prompt": references[1],
            "figures": _figures(TASKS),
            "gate_id": gate,
            "evidence": {"won": TASKS, "lost": 0, "tasks": TASKS},
            "error_share": 0.0125,
            **(best or {}),
        },
    ]
    id, engine = str(ULID()), make_engine(parse_url(database_url))
    async with make_database(engine).begin() as tx:
        tx.add(Improvement(id=id, **fields | values))
        await tx.flush()
        for number, row in enumerate(candidates):
            tx.add(
                Candidate(
                    **{"improvement_id": id, "number": number, "author": "local", "model": "learnloop/tiny"} | row
                )
            )
    await engine.dispose()
    return id
