"""Two judges on the stored rollouts of a run, over HTTP and by the command."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.app.db.database import Database
from tests.fakes.scripted_judge import KEY, Raw, completion, scripted_judge
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import make_run
from tests.integration.app.judged_rollouts import judged_rollouts
from tests.integration.app.served import served, settings_for


def _opinion(request: Any) -> Raw:
    answer = json.loads(request["messages"][1]["content"])["agent_answer"]
    document = json.dumps({"explanation": f"on {answer}", "correct": "April" not in answer})
    return Raw(body=json.dumps(completion(document) | {"usage": {"prompt_tokens": 30, "completion_tokens": 5}}))


async def test_two_judges_are_compared_and_a_second_report_costs_nothing(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with scripted_judge() as model:
        model.reply = _opinion  # type: ignore[method-assign]
        settings = settings_for(
            data_dir,
            database_url,
            judge_model="openai/gpt-4.1-mini",
            judge_base_url=model.url,
            judge_api_key=KEY,
            judge_requests_per_minute=1e6,
        )
        async with served(settings, ScriptedLoop()) as client:
            run_id = await make_run(database, environment="email_search")
            empty = await client.post(f"/runs/{run_id}/judge-agreement", json={"judges": [{"name": "reference"}]})
            assert (empty.status_code, "no finished rollouts" in empty.json()["detail"]) == (409, True)
            await judged_rollouts(database, run_id)
            judges = [{"name": "reference"}, {"name": "correctness"}]
            report = await _report(client, run_id, judges=judges)
            assert (report["trajectories"], report["both_scored"], report["same_decisions"]) == (10, 10, 0.8)
            # Of 10, 4 yes and 6 yes: expected 0.4 * 0.6 + 0.6 * 0.4.
            assert round(report["kappa"], 9) == round((0.8 - 0.48) / 0.52, 9)
            assert [judge["scored"] for judge in report["judges"]] == [10, 10]
            assert {disagreement["trajectory_id"] for disagreement in report["disagreements"]} == {"t02", "t12"}
            assert report["disagreements"][0]["explanations"][1] == "on the fourteenth"
            figures = report["judges"][1]
            assert (figures["requests"], figures["prompt_tokens"], figures["cached"]) == (6, 180, 0)
            assert round(figures["cost_usd"], 9) == round(6 * (30 * 0.4 + 5 * 1.6) / 1e6, 9)

            again = await _report(client, run_id, judges=judges, trajectories=5)
            assert (again["trajectories"], again["judges"][1]["requests"], again["judges"][1]["cached"]) == (5, 0, 3)
            stored = await _report(client, run_id, judges=[{"name": "reference"}])
            assert [judge["name"] for judge in stored["judges"]] == ["stored", "reference"]
            assert stored["disagreement_count"] == 4

            for wrong, field in (
                ([{"name": "nobody"}], ["body", "judges", 0, "name"]),
                ([{"name": "reference"}, {"name": "ruler", "config": {"passes": 9}}], ["body", "judges", 1, "config"]),
            ):
                refused = await client.post(f"/runs/{run_id}/judge-agreement", json={"judges": wrong})
                assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, field)

            arguments = ["judges", "agreement", run_id, "--judge", "reference", "--judge", '{"name": "correctness"}']
            printed = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--url", str(client.base_url)])
            assert printed.exit_code == 0, printed.output
            assert "same decisions 0.80, kappa 0.62" in printed.output
            assert "t02" in printed.output


async def _report(client: httpx.AsyncClient, run_id: str, **request: Any) -> Any:
    return (await client.post(f"/runs/{run_id}/judge-agreement", json=request)).raise_for_status().json()
