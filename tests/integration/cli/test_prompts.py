"""`learnloop prompts`, and `learnloop eval` with prompts, against the real service."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.runner import runner
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.own_agent_runs import reachable
from tests.integration.app.served import served, settings_for
from tests.integration.cli.conftest import Learnloop, Ran

TASKS = [{"task": {"question": f"{number}?"}} for number in range(60)]


@pytest.mark.parametrize("is_found", [True, False])
async def test_an_agents_texts_are_found(
    data_dir: Path, database_url: str, learnloop: Learnloop, is_found: bool
) -> None:
    async def ask(document: Mapping[str, Json]) -> tuple[int, Json]:
        session, task = document["session"], document["task"]["question"]
        system = f"{'You are the desk.' if is_found else task}\nNumber {task}"
        headers = {"authorization": f"Bearer {session['api_key']}"}
        async with httpx.AsyncClient(
            base_url=session["base_url"], headers=headers, trust_env=False, timeout=60
        ) as http:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
            (await http.post("/chat/completions", json={"model": "any", "messages": messages})).raise_for_status()
        return 200, {"reward": 1.0}

    settings = reachable(data_dir, database_url)
    async with (
        scripted_chat(gives_up) as chat,
        runner(ask) as it,
        served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client,
    ):
        config = {"scenarios": TASKS, "runner": {"push": {"url": it.url}}, "prompt": "replace"}
        body = {"environment": {"name": "agent", "config": config}, "judge": {"name": "reported"}, "scenarios": 8}
        body |= {"split": "validation", "models": [{"model": "learnloop/tiny"}]}
        id = (await client.post("/evaluations", json=body)).json()["evaluation_id"]

        async def ask_status() -> Json:
            return (await client.get(f"/evaluations/{id}")).json()

        await answered(ask_status, lambda evaluation: evaluation["status"] == "completed")
        command = await asyncio.to_thread(learnloop, "prompts", "find", "desk", id, "--url", str(client.base_url))
        if not is_found:
            assert command.exit_code == 1
            assert "The requests have no text in common that a prompt can replace" in command.stderr
            return
        assert "stored 1 part as desk@1: what 8 different requests share" in command.stdout
        assert "learnloop prompts upload desk FILE --parent desk@1" in command.stdout
        stored = await asyncio.to_thread(learnloop, "prompts", "show", "desk", "--json", "--url", str(client.base_url))
        assert stored.json["replaces"] == {"system": "You are the desk."}


async def gives_up(request: Mapping[str, Json]) -> Reply:
    return call("return_final_answer", answer="I don't know", sources=[])


async def test_prompts_are_uploaded_from_files_shown_and_compared(
    data_dir: Path, database_url: str, learnloop: Learnloop
) -> None:
    async with scripted_chat(gives_up) as chat:
        settings = settings_for(data_dir, database_url)
        async with served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client:

            async def run(*arguments: str) -> Ran:
                return await asyncio.to_thread(learnloop, *arguments, "--url", str(client.base_url))

            assert "learnloop prompts upload" in (await run("prompts", "list")).stdout
            text, folder, yaml = data_dir / "short.txt", data_dir / "whole", data_dir / "careful.yaml"
            text.write_text("Be brief.\n")
            (folder / "tool").mkdir(parents=True)
            (folder / "system.txt").write_text("Be careful.\nBe kind.\n")
            (folder / "tool" / "read_email.txt").write_text("Open a mail.")
            (folder / "AGENTS.md").write_text("Build it first.")
            (folder / ".hidden").write_text("not a part")
            yaml.write_text("system: Be careful.\n")
            for path, parts in ((text, "1 part"), (folder, "3 parts"), (yaml, "1 part")):
                stored = await run("prompts", "upload", "mine", str(path))
                assert f"stored {parts} as mine@" in stored.stdout
            listed = await run("prompts", "list", "--name", "mine")
            assert [row.split()[:3] for row in listed.stdout.splitlines()[1:]] == [
                ["mine", "3", "1"],
                ["mine", "2", "3"],
                ["mine", "1", "1"],
            ]
            displayed = await run("prompts", "show", "mine@2", "--json")
            assert displayed.json["parts"] == {
                "file:AGENTS.md": "Build it first.",
                "system": "Be careful.\nBe kind.\n",
                "tool:read_email": "Open a mail.",
            }
            difference = (await run("prompts", "show", "mine@2", "--against", "mine@3")).stdout
            assert "+Be kind." in difference
            assert "+Open a mail." in difference
            assert "-Be careful." not in difference

            evaluated = await run("eval", "--prompt", "-", "--prompt", "mine@3", "--scenarios", "16", "--json")
            report = json.loads(evaluated.stdout)["report"]
            assert [model["prompt"] and model["prompt"]["version"] for model in report["models"]] == [None, 3]
            assert report["gate"]["decision"] == "not_better"
            again = await run("evaluations", "show", json.loads(evaluated.stdout)["evaluation_id"])
            assert "was not shown to be better" in " ".join(again.stdout.split())

            used = await run("prompts", "delete", "mine", "--version", "3")
            assert used.exit_code == 1
            assert "is used by evaluations" in used.stderr
            assert (await run("prompts", "delete", "mine", "--version", "1")).stdout == "deleted mine@1\n"


async def test_files_that_are_not_prompts_are_named(data_dir: Path, database_url: str, learnloop: Learnloop) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        file = data_dir / "bad.yaml"
        for content, says in (
            (b"- 1", "bad.yaml has no parts"),
            (b"a: [", "bad.yaml cannot be read"),
            (b"\xff\xfe", "bad.yaml cannot be read"),
            (b"parts: {tone: a}", "bad.yaml was not stored: POST /prompts failed (422): parts.tone: the name is not"),
        ):
            file.write_bytes(content)
            url = str(client.base_url)
            refused = await asyncio.to_thread(learnloop, "prompts", "upload", "bad", str(file), "--url", url)
            assert refused.exit_code == 1
            assert says in " ".join(refused.stderr.split())
        two = await asyncio.to_thread(
            learnloop, "eval", "--prompt", "a", "--model", "learnloop/tiny", "--model", "x", "--url", url
        )
        assert two.exit_code == 2
