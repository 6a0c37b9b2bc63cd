"""`learnloop data delete` against the real service."""

import asyncio
from pathlib import Path

from tests.fakes.mailboxes import create_scenarios, stored
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for
from tests.integration.cli.conftest import Learnloop, Ran


async def test_uploaded_data_is_deleted(data_dir: Path, database_url: str, learnloop: Learnloop) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:

        async def delete(*arguments: str) -> Ran:
            whole = ("data", "delete", *arguments, "--url", str(client.base_url))
            return await asyncio.to_thread(learnloop, *whole)

        await stored(client)
        await create_scenarios(client)
        refused = await delete("mail")
        assert (refused.exit_code, "is used by scenarios mail" in refused.stderr) == (1, True)
        unknown = await delete("mail", "--scenarios", "--version", "2")
        assert (unknown.exit_code, "there are no scenarios 'mail@2'" in unknown.stderr) == (1, True)
        assert (await delete("mail", "--scenarios")).stdout == "deleted mail@1\n"
        assert (await delete("mail", "--json")).json == {"deleted": ["mail@1"]}
        assert "There is no inbox 'mail'" in (await delete("mail")).stderr
