"""Which judges can be used here: what those need that cannot is said wherever judges are offered."""

from pathlib import Path

import pytest

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.run_commands import run_command
from tests.integration.app.served import served, settings_for

ASKING = {"blend", "correctness", "ruler"}
"""Judges that ask a language model, unless they are given other settings."""


async def test_judges_say_what_they_need(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        needs = {judge["name"]: judge["needs"] for judge in (await client.get("/judges")).json()["items"]}
        assert {name for name, missing in needs.items() if missing} == ASKING
        assert needs["ruler"].startswith("ruler needs a language model: no model is named, and none is listed")
        listed = (await run_command(client, "list", group="judges")).stdout.splitlines()
        assert "reference" in listed
        [ruler] = [line for line in listed if line.startswith("ruler")]
        assert ruler.startswith("ruler  cannot be used yet: ruler needs a language model")
        refused = await client.post("/learn-loop", json={"judge": {"name": "ruler"}})
        assert needs["ruler"] in refused.text


@pytest.mark.parametrize(("key", "missing"), [(None, ASKING), ("sk-some-key", set())])
async def test_a_judge_model_without_its_key_cannot_be_used(
    data_dir: Path, database_url: str, key: str | None, missing: set[str]
) -> None:
    settings = settings_for(data_dir, database_url, judge_model="openai/gpt-4.1", openai_api_key=key)
    async with served(settings, ScriptedLoop()) as client:
        judges = (await client.get("/judges")).json()["items"]
        assert {judge["name"] for judge in judges if judge["needs"]} == missing
        for judge in judges:
            assert judge["needs"] is None or "set OPENAI_API_KEY" in judge["needs"]
