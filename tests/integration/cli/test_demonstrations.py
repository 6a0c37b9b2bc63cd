"""`learnloop demonstrations` against the real service."""

import asyncio
from pathlib import Path

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.imitating_runs import demonstrations
from tests.integration.app.served import served, settings_for
from tests.integration.cli.conftest import Learnloop, Ran


async def test_demonstrations_are_uploaded_listed_and_deleted(
    data_dir: Path, database_url: str, learnloop: Learnloop
) -> None:
    async with served(settings_for(data_dir, database_url, max_concurrent_runs=0), ScriptedLoop()) as client:
        url = str(client.base_url)

        async def run(*arguments: str) -> Ran:
            return await asyncio.to_thread(learnloop, *arguments, "--url", url)

        assert "learnloop demonstrations upload" in (await run("demonstrations", "list")).stdout
        file = data_dir / "talks.jsonl"
        file.write_bytes(demonstrations(2) + b'{"messages": []}\n')
        refused = await run("demonstrations", "upload", "mine", str(file))
        assert refused.exit_code == 1
        assert "talks.jsonl was not stored: POST /demonstrations failed (422)" in refused.stderr
        assert "line 3: messages" in refused.stderr
        missing = await run("demonstrations", "upload", "mine", str(data_dir / "none"))
        assert missing.exit_code == 2
        assert "No such file" in " ".join(missing.stderr.replace("│", " ").split())
        file.write_bytes(demonstrations(2))
        assert "stored 2 demonstrations as mine@1" in (await run("demonstrations", "upload", "mine", str(file))).stdout
        file.write_bytes(demonstrations(3))
        stored = (await run("demonstrations", "upload", "mine", str(file), "--json")).json
        assert (stored["version"], stored["count"]) == (2, 3)
        listed = await run("demonstrations", "list", "--name", "mine")
        assert [row.split()[:3] for row in listed.stdout.splitlines()[1:]] == [["mine", "2", "3"], ["mine", "1", "2"]]
        accepted = await run("train", "--demonstrations", "mine@1", "--iterations", "0", "--detach", "--json")
        request = (await client.get(f"/runs/{accepted.json['run_id']}")).json()["request"]
        assert request["warm_start"]["demonstrations"]["version"] == 1
        unknown = await run("demonstrations", "delete", "mine", "--version", "3")
        assert (unknown.exit_code, "there are no demonstrations 'mine@3'" in unknown.stderr) == (1, True)
        assert (await run("demonstrations", "delete", "mine", "--version", "2")).stdout == "deleted mine@2\n"
