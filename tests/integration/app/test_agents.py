"""Runs whose rollouts an agent makes that owns its loop."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from learnloop_service.environment import plugins
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.rollout.agents.base import AgentTask
from learnloop_service.training.rollout.agents.registry import GROUP
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for


class Forgetful:
    """Asks a side question, then does the task by a history that it has rewritten."""

    name = "forgetful"

    async def run(self, task: AgentTask) -> str:
        model = task.model
        client = AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, http_client=model.http_client)
        question = f"Summarise: {task.messages[-1]['content']}"
        side = await client.chat.completions.create(model=model.model, messages=[{"role": "user", "content": question}])
        shorter: Any = [task.messages[0], {"role": "user", "content": side.choices[0].message.content}]
        reply = await client.chat.completions.create(model=model.model, messages=shorter)
        for tool_call in reply.choices[0].message.tool_calls or ():
            assert tool_call.type == "function"
            await task.call_tool(tool_call.function.name, tool_call.function.arguments, tool_call.id)
        return "done"


def build(config: Mapping[str, Any]) -> Forgetful:
    if config:
        raise ValueError("the agent forgetful has no config")
    return Forgetful()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is installed."""
    real: Callable[[str], Mapping[str, EntryPoint]] = plugins.registered
    installed = {"forgetful": EntryPoint("forgetful", f"{__name__}:build", GROUP)}
    broken = {"broken": EntryPoint("broken", "nowhere:build", GROUP)}
    monkeypatch.setattr(plugins, "registered", lambda group: {**installed, **broken} if group == GROUP else real(group))


async def answer(request: Mapping[str, Any]) -> Reply:
    if str(request["messages"][0]["content"]).startswith("Summarise"):
        return Reply(content="In short.")
    return call("return_final_answer", answer="in May" if request["seed"] % 2 else "unknown", sources=[])


@pytest.mark.usefixtures("forgetful")
async def test_all_that_an_agent_asked_is_trained_judged_and_shown(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(answer) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]

            async def get(path: str) -> Any:
                return (await client.get(path)).raise_for_status().json()

            async def check(trajectory_id: str) -> None:
                trajectory = await get(f"/trajectories/{trajectory_id}")
                assert [message["role"] for message in trajectory["messages"]] == ["user", "assistant"]
                [history] = trajectory["additional_histories"]
                assert [message["role"] for message in history["messages"]] == ["system", "user", "assistant"]
                assert (trajectory["turns"], trajectory["error"], history["tools"]) == (2, None, [])

            posted = await client.post(
                "/learn-loop",
                json={
                    "agent": {"name": "forgetful"},
                    "iterations": 1,
                    "groups_per_iteration": 2,
                    "rollouts_per_group": 4,
                    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
                },
            )
            run_id = posted.raise_for_status().json()["run_id"]
            run = await run_with(client, run_id, "completed", "failed")
            assert (run["status"], run["request"]["agent"]) == ("completed", {"name": "forgetful", "config": {}})
            [policy] = backend.policies.values()
            trained = [
                rollout for request in policy.requests for group in request.groups for rollout in group.trajectories
            ]
            assert trained
            assert all(len(rollout.additional_histories) == 1 for rollout in trained)
            for row in (await get(f"/runs/{run_id}/trajectories?limit=200"))["items"]:
                await check(row["id"])
            assert (await get(f"/runs/{run_id}/verify"))["ok"]

            response = await client.post("/ask", json={"run_id": run_id, "question": "When?", "inbox_address": INBOX})
            await check(response.raise_for_status().json()["trajectory_id"])

            posted = await client.post("/evaluations", json={"run_id": run_id, "scenarios": 1})
            path = f"/evaluations/{posted.raise_for_status().json()['evaluation_id']}"
            evaluation = await answered(
                lambda: get(path), lambda document: document["status"] in ("completed", "failed")
            )
            assert (evaluation["status"], evaluation["request"]["agent"]["name"]) == ("completed", "forgetful")
            for row in (await get(f"{path}/trajectories"))["items"]:
                await check(row["id"])


INBOX = "test.0.1@inbox.example"


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("path", ["/learn-loop", "/evaluations"])
async def test_an_agent_that_cannot_be_is_refused(data_dir: Path, database_url: str, path: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert [agent_info["name"] for agent_info in (await client.get("/agents")).json()["items"]] == [
            "broken",
            "forgetful",
        ]
        base = {"models": [{"model": "learnloop/tiny"}], "scenarios": 1} if path == "/evaluations" else {}
        for agent, field, message in (
            ({"name": "nobody"}, "name", "Unknown agent 'nobody'. Available: broken, forgetful."),
            ({"name": "broken"}, "name", "cannot be loaded from nowhere:build: ModuleNotFoundError"),
            ({"name": "forgetful", "config": {"a": 1}}, "config", "has no config"),
            ({"name": "forgetful", "loop": 1}, "loop", "Unknown field. Known: name, config."),
            ({}, "name", "Field required"),
        ):
            refused = await client.post(path, json=base | {"agent": agent})
            assert refused.status_code == 422
            [error] = refused.json()["errors"]
            assert error["loc"] == ["body", "agent", field]
            assert message in error["msg"]
