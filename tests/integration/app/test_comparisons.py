"""Two runs compared by the held-out scenarios that one answers and the other does not."""

import json
from pathlib import Path
from typing import Any

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.compared_runs import compared_runs
from tests.integration.app.emails import make_run
from tests.integration.app.keyed import keyed
from tests.integration.app.run_commands import run_command
from tests.integration.app.served import served, settings_for


async def test_the_scenarios_that_one_run_answers_and_the_other_does_not(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop()
    async with served(settings_for(data_dir, database_url), loop) as client:
        one, other = await compared_runs(client, loop)

        async def compared(run_id: str, other_id: str) -> Any:
            reply = await client.get(f"/runs/{run_id}/comparison", params={"other": other_id})
            return reply.raise_for_status().json()["held_out"]

        [kind] = await compared(one, other)
        assert (kind["split"], kind["mode"]) == ("validation", "sampled")
        assert (kind["run_iteration"], kind["other_iteration"]) == (2, 2)
        assert (kind["difference"]["scenarios"], kind["difference"]["changed"], kind["difference"]["mean"]) == (8, 2, 0)
        assert (kind["run_better"], kind["other_better"]) == (1, 1)
        [lost], [won] = kind["run_wins"], kind["other_wins"]
        assert (lost["scenario_id"], lost["run"]["success"], lost["other"]["success"]) == ("validation:0", 1, 0)
        assert (won["scenario_id"], won["scenario"]["task"]["question"]) == ("validation:6", "what 6?")
        for side, run_id in ((won["run"], one), (won["other"], other)):
            trajectory = (await client.get(f"/trajectories/{side['trajectory_id']}")).json()
            assert (trajectory["run_id"], trajectory["scenario_id"]) == (run_id, "validation:6")
            assert trajectory["success"] == bool(side["success"])
        [turned] = await compared(other, one)
        assert [scenario["scenario_id"] for scenario in turned["run_wins"]] == ["validation:6"]
        printed = (await run_command(client, "compare", one, other)).stdout
        assert "8 scenarios, 1 won and 1 lost by B: no difference shown" in printed
        assert "      B is better: what 6? (A 0%, B 100%)\n      A is better: what 0? (A 100%, B 0%)\n" in printed
        comparison = json.loads((await run_command(client, "compare", one, other, "--json")).stdout)
        assert comparison["held_out"]["validation sampled"]["b_wins"] == ["validation:6"]
        missing = await client.get(f"/runs/{one}/comparison", params={"other": "nobody"})
        assert (missing.status_code, missing.json()["detail"]) == (404, "There is no run 'nobody'.")


async def test_the_other_run_must_belong_to_the_callers_project(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        own_run, theirs = [await make_run(service.database, project=project) for project in ("mail", "sales")]
        headers = await service.headers("mail")
        for other, status in ((own_run, 200), (theirs, 404)):
            path = f"/runs/{own_run}/comparison"
            reply = await service.client.get(path, params={"other": other}, headers=headers)
            assert reply.status_code == status, reply.text
