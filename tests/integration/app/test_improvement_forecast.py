"""What is read of earlier runs for the forecast of an improvement."""

from typing import Any

from sqlalchemy import insert

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import LedgerEntry
from learnloop_service.app.improvements.forecast import EarlierRun, earlier_runs
from tests.fakes.stored_request import stored_request, stored_run

WARM_START = {"demonstrations": {"oracle": 50}, "epochs": 2, "iterations": 2}


async def a_run(database: Database, *rows: tuple[int, str, float, int], warm_start: Any = None, **columns: Any) -> None:
    """Save a completed run with rows of its ledger: iteration, phase, seconds, tokens."""
    run = stored_run(**{"status": "completed", "request": stored_request(warm_start=warm_start)} | columns)
    async with database.begin() as tx:
        tx.add(run)
        await tx.flush()
        for iteration, phase, seconds, tokens in rows:
            row = {"run_id": run.id, "iteration": iteration, "phase": phase, "seconds": seconds, "wasted": False}
            await tx.execute(insert(LedgerEntry).values(**row, prompt_tokens=tokens, completion_tokens=0))


async def test_earlier_runs_say_what_their_work_took(database: Database) -> None:
    await a_run(
        database,
        *((0, "evaluate", 5.0, 900), (0, "other", 1.0, 0), (1, "train", 20.0, 0), (2, "train", 18.0, 0)),
        *((2, "other", 2.0, 0), (2, "evaluate", 4.0, 1_100), (3, "rollout", 6.0, 500), (3, "judge", 1.0, 70)),
        (3, "train", 3.0, 0),
        warm_start=WARM_START,
        iterations_total=3,
        best_success=0.8,
    )
    (run,) = await earlier_runs(database, "learnloop", "embedded", "learnloop/tiny")
    assert run == EarlierRun(
        "email_search",
        0.8,
        imitates_only=False,
        evaluated=10 / 2_000,
        trained=10 / 500,
        imitated=40 / 100,
    )


async def test_only_completed_runs_of_the_project_on_the_base_count_newest_first(database: Database) -> None:
    rows = ((1, "train", 1.0, 0), (1, "rollout", 1.0, 100))
    for columns in ({"status": "failed"}, {"base_model": "other"}, {"model_project": "b"}, {"backend": "fake"}):
        await a_run(database, *rows, **columns)
    await a_run(database, *rows, best_success=0.5, environment="sales_email")
    await a_run(database, (1, "train", 1.0, 0), warm_start=WARM_START, iterations_total=2, best_success=0.6)
    runs = await earlier_runs(database, "learnloop", "embedded", "learnloop/tiny")
    assert [(run.success, run.environment, run.imitates_only) for run in runs] == [
        (0.6, "email_search", True),
        (0.5, "sales_email", False),
    ]
    assert [run.trained for run in runs] == [None, 2 / 100]


async def test_runs_from_a_checkpoint_are_runs_on_its_base(database: Database) -> None:
    rows = ((1, "train", 1.0, 0), (1, "rollout", 1.0, 100))
    await a_run(database, *rows, model_name="a", base_model="b@2", status="failed")
    await a_run(database, *rows, model_name="c", base_model="learnloop/a@14", best_success=0.3)
    await a_run(database, *rows, model_name="d", base_model="learnloop/c", best_success=0.4)
    await a_run(database, *rows, model_name="e", base_model="b", best_success=0.5)
    runs = await earlier_runs(database, "learnloop", "embedded", "b@2")
    assert [run.success for run in runs] == [0.4, 0.3]


async def test_no_runs_are_no_runs(database: Database) -> None:
    assert await earlier_runs(database, "learnloop", "embedded", "learnloop/tiny") == []
