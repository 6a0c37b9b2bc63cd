"""A run that ends when little is left to learn, from its request to the terminal."""

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.runs_without_signal import RUN, started
from tests.integration.app.served import ended, served, settings_for
from tests.integration.training.scripted_runs import skilled

PERFECT = RUN | {"iterations": 9, "groups_per_iteration": 8, "evaluation": {**RUN["evaluation"], "every": 20}}  # type: ignore[dict-item]


async def test_a_run_that_asks_for_it_ends_early_as_completed_and_says_why(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(skilled(lambda *_: True)) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            run = await ended(client, (await started(client, **PERFECT, end_when_learned=True))["run_id"])
            iterations_done = run["progress"]["iterations_done"]
            assert (run["status"], run["error"]) == ("completed", None)
            assert 0 < iterations_done < 9
            sentence = f"It ended after {iterations_done} of 9 iterations, because little was left to learn."
            assert run["ended_early"] == sentence
            assert {(evaluation["split"], evaluation["iteration"]) for evaluation in run["evaluations"]} == {
                (split, iteration) for split in ("validation", "test") for iteration in (0, iterations_done)
            }
            document = (await client.get(f"/runs/{run['run_id']}/diagnosis")).raise_for_status().json()
            [easy] = [diagnosis for diagnosis in document["diagnoses"] if diagnosis["cause"] == "too_easy"]
            assert easy["named_at_iteration"] == iterations_done
            printed = await asyncio.to_thread(
                CliRunner().invoke, app, ["runs", "show", run["run_id"], "--url", str(client.base_url)]
            )
            assert sentence in " ".join(printed.output.split())
            whole = await ended(client, (await started(client, **PERFECT))["run_id"])
            assert (whole["progress"]["iterations_done"], whole["ended_early"]) == (9, None)
