"""`learnloop webhooks` against the service."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from learnloop_service.app.cli.main import app
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for
from tests.integration.app.webhook_stage import stage


async def test_the_commands_do_what_the_api_does(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = settings_for(data_dir, database_url, allowed_private_hosts="127.0.0.0/8", max_concurrent_runs=0)
    async with (
        served(settings, ScriptedLoop()) as client,
        stage(database_url) as here,
        faulty_receiver(lambda n: "500 Oops" if n == 1 else "200 OK") as it,
    ):

        async def ran(*arguments: str) -> Result:
            command = ["webhooks", *arguments, "--url", str(client.base_url)]
            return await asyncio.to_thread(CliRunner().invoke, app, command)

        async def answer(*arguments: str) -> Any:
            result = await ran(*arguments)
            assert result.exit_code == 0, result.output
            return json.loads(result.stdout)

        assert (await ran("list")).stdout == "no webhooks\n"
        webhook = await answer("add", it.url, "--event", "run.started", "--event", "phase.completed", "--json")
        assert webhook["events"] == ["run.started", "phase.completed"]
        assert (await ran("test", webhook["id"])).stdout.startswith("delivered (")
        failed = await ran("test", webhook["id"])
        assert (failed.exit_code, failed.stdout.split(" (")[0]) == (1, "the receiver answered 500")
        run_id = await here.run("learnloop")
        await here.event(run_id)
        [row] = await answer("deliveries", webhook["id"], "--json")
        assert (await answer("delivery", row["id"]))["body"] == (await here.deliveries())[0].body
        for arguments in [
            ("redeliver", row["id"]),
            ("replay", webhook["id"], run_id),
            ("list",),
            ("deliveries", webhook["id"]),
            ("rotate-secret", webhook["id"], "--overlap-hours", "0"),
            ("disable", webhook["id"]),
            ("enable", webhook["id"]),
            ("remove", webhook["id"]),
        ]:
            result = await ran(*arguments)
            assert result.exit_code == 0, result.output
            assert webhook["secret"] not in result.stdout
            if arguments[0] in ("list", "deliveries"):
                assert max(map(len, result.stdout.splitlines())) <= 80
        refused = await ran("remove", webhook["id"])
        assert refused.exit_code == 1
        assert f"There is no webhook '{webhook['id']}'" in refused.stderr
