"""Runs to compare."""

import httpx

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with

NONE = [False] * 8
FIRST, SECOND = [*[True] * 6, False, False], [False, *[True] * 5, True, False]


async def compared_runs(client: httpx.AsyncClient, loop: ScriptedLoop) -> list[str]:
    """The ids of two runs, of which the first answers questions 0 to 5 at the end, and the second 1 to 6."""
    found = []
    for name, last in (("one", FIRST), ("other", SECOND)):
        loop.held_out = {0: NONE, 2: last}
        body = {"iterations": 2, "model": {"name": name}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        found.append(run_id)
    return found
