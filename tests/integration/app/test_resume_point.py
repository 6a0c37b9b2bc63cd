"""Where a run continues, read from the database."""

from pathlib import Path

from learnloop_service.app.db.database import Database
from learnloop_service.app.runs.resume_point import resume_of
from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

BEFORE = [True] * 2 + [False] * 6
HIGHEST = [True] * 6 + [False] * 2
NEWEST = [False] * 2 + [True] * 5 + [False]


async def test_the_highest_validation_so_far_is_compared_with_after_a_resume(
    data_dir: Path, database_url: str, database: Database
) -> None:
    loop = ScriptedLoop(held_out={0: BEFORE, 1: HIGHEST, 2: NEWEST})
    async with served(settings_for(data_dir, database_url), loop) as client:
        body = {"iterations": 2, "model": {"name": "a"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        run = await run_with(client, run_id, "completed")
        resume = await resume_of(database, run_id)
    assert resume is not None
    successes = {f"validation:{number}": float(right) for number, right in enumerate(HIGHEST)}
    assert resume.best == BestCheckpoint(0, Validation(0.75, 0.75, successes, len(HIGHEST)))
    low, high = run["best_checkpoint"]["interval"]
    assert low < run["best_checkpoint"]["success"] == 0.25 < high
