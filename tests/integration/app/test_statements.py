"""How many SQL statements a request makes: as many for a long run as for a short one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Evaluation, Iteration, LedgerEntry, WebhookDelivery
from learnloop_service.app.schemas.runs import RunOut
from tests.fakes.stored_request import stored_request, stored_run
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed

_OF_REQUESTS = {"RequestResponseCycle.run_asgi", "CoalescedReads._read_on"}
"""Coroutines of the tasks that answer requests; claiming, beating and listening go on beside them."""
_PROJECT = "mail"


@contextmanager
def statements() -> Iterator[list[str]]:
    """What requests execute while this is open."""
    executed: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__qualname__", "") in _OF_REQUESTS:
            executed.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def _ended_run(database: Database, iterations: int) -> str:
    """A run with so many iterations, each with a checkpoint, held-out figures, a ledger and deliveries."""
    run = stored_run(
        status="completed",
        request=stored_request(iterations=iterations),
        model_project=_PROJECT,
        iterations_total=iterations,
        next_iteration=iterations + 1,
        best_step=iterations,
        best_success=0.5,
    )
    run_id = run.id
    async with database.begin() as tx:
        tx.add(run)
        await tx.flush()
        for number in range(iterations + 1):
            tx.add_all(_rows(run_id, number))
    return run_id


def _rows(run_id: str, number: int) -> list[Any]:
    row_key = {"run_id": run_id, "iteration": number}
    rewards = {f"reward_{name}": 0.1 * number for name in ("mean", "median", "min", "max")}
    figures = {"scenarios": 8, "success": 0.5, "mean_reward": 0.1 + 0.2, "malformed": 1e-7, "turns": 2.0}
    used = {"seconds": 1.5, "prompt_tokens": 10, "completion_tokens": 2, "usd": 0.25, "wasted": number % 2 == 1}
    return [
        Iteration(
            **row_key,
            **rewards,
            step=number,
            best_step=number,
            reward_count=4,
            success=None,
            malformed=0.0,
            failed_rollouts=0,
            skipped_groups={},
            train_metrics={},
            timing={},
        ),
        Evaluation(**row_key, **figures, split="test", mode="sampled", step=number),
        Checkpoint(**row_key, step=number, success=0.5, is_best=False),
        LedgerEntry(**row_key, **used, phase="rollout"),
        WebhookDelivery(
            id=str(ULID()),
            **row_key,
            project="p",
            receiver="http://x",
            url="http://x",
            body="{}",
            state="delivered" if number else "failed",
        ),
    ]


@asynccontextmanager
async def _service_with(data_dir: Path, database_url: str, *lengths: int) -> AsyncIterator[tuple[Keyed, list[str]]]:
    """A service with runs of so many iterations, all of whose imports and caches are there."""
    async with keyed(data_dir, database_url) as service:
        runs = [await _ended_run(service.database, length) for length in lengths]
        await service.client.get(f"/runs/{runs[0]}", headers=bearer(OPERATOR_KEY))
        yield service, runs


@pytest.mark.parametrize(("path", "most"), [("", 1), ("/iterations", 2), ("/checkpoints", 2)])
async def test_a_long_run_takes_as_many_statements_as_a_short_one(
    data_dir: Path, database_url: str, path: str, most: int
) -> None:
    async with _service_with(data_dir, database_url, 1, 30) as (service, runs):
        counts = []
        for run_id in runs:
            with statements() as executed:
                reply = await service.client.get(f"/runs/{run_id}{path}", headers=bearer(OPERATOR_KEY))
            assert reply.status_code == 200, reply.text
            counts.append(len(executed))
        assert counts[0] == counts[1]
        assert 1 <= counts[0] <= most


async def test_a_run_is_started_in_fivestatements(data_dir: Path, database_url: str) -> None:
    """The newest run like it, the model held, the run, its first event, and who subscribes to that: a learn-loop is
    taken a hundred times a second."""
    async with keyed(data_dir, database_url) as service:
        with statements() as executed:
            started = await service.client.post("/learn-loop", json={}, headers=bearer(OPERATOR_KEY))
        assert started.status_code == 202, started.text
        assert len(executed) == 5, executed


async def test_a_projects_key_costs_statements_only_at_first(data_dir: Path, database_url: str) -> None:
    async with _service_with(data_dir, database_url, 1) as (service, (run_id,)):
        headers, others = await service.headers(_PROJECT), await service.headers("other")
        assert (await service.client.get(f"/runs/{run_id}", headers=headers)).status_code == 200
        with statements() as executed:
            assert (await service.client.get(f"/runs/{run_id}", headers=headers)).status_code == 200
        assert len(executed) == 1
        for _ in range(2):  # what one project may see, another one still may not
            assert (await service.client.get(f"/runs/{run_id}", headers=others)).status_code == 404


async def test_who_asks_together_gets_each_its_own_run(data_dir: Path, database_url: str) -> None:
    async with _service_with(data_dir, database_url, *range(1, 9)) as (service, runs):
        run_ids = [*runs, str(ULID())] * 5
        with statements() as executed:
            replies = await asyncio.gather(
                *(service.client.get(f"/runs/{run_id}", headers=bearer(OPERATOR_KEY)) for run_id in run_ids)
            )
        for run_id, reply in zip(run_ids, replies, strict=True):
            if run_id not in runs:
                assert reply.status_code == 404
                continue
            assert reply.json()["run_id"] == run_id
            assert len(reply.json()["iterations"]) == runs.index(run_id) + 2
        assert len(executed) < len(run_ids)


async def test_the_document_is_what_is_stored(data_dir: Path, database_url: str) -> None:
    async with _service_with(data_dir, database_url, 3) as (service, (run_id,)):
        reply = await service.client.get(f"/runs/{run_id}", headers=bearer(OPERATOR_KEY))
        assert reply.headers["content-type"] == "application/json"
        run = RunOut.model_validate_json(reply.text)
        assert run.model_dump(mode="json") == reply.json()
        assert [point.iteration for point in run.iterations] == [0, 1, 2, 3]
        point = run.iterations[3]
        assert (point.step, point.rewards.mean, point.rewards.count, point.success) == (3, 0.1 * 3, 4, None)
        held_out = run.evaluations[0]
        assert (held_out.mean_reward, held_out.malformed) == (0.1 + 0.2, 1e-7)  # to the last bit
        assert run.webhooks == {"failed": 1, "delivered": 3}
        assert (run.cost.seconds, run.cost.prompt_tokens, run.cost.wasted_tokens) == (6.0, 40, 24)
        assert (run.cost.usd, run.cost.wasted_usd) == (1.0, 0.5)
