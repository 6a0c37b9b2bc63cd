"""The example agents (`benchmarks/agents`) ask a model what the built-in loop asks it, and are rewarded the same."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.learning.own_agents import BUILT_IN, COMMANDS, PYTHON_AGENTS, claiming, desk
from benchmarks.learning.own_agents import request as learn_loop_of
from learnloop_service.environment.base import Split
from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.rollout.chat import identity
from learnloop_service.training.types import EvaluationConfig, RunConfig
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.own_agent_runs import get, reachable
from tests.integration.app.served import run_with, served

SEED = 0
COUNTS: Mapping[Split, int] = {"train": 2, "validation": 1, "test": 1}
CONFIG = RunConfig(1, 2, 4, evaluation=EvaluationConfig(scenarios=0, test_scenarios=0))
PROGRAMS: Mapping[str, Sequence[str]] = {**dict.fromkeys(PYTHON_AGENTS, ()), "shell": ("curl", "jq"), "node": ("node",)}
SEARCH = call("search_inbox", keywords=["launch"])
SAID = (
    SEARCH,
    Reply((*SEARCH.calls, *call("read_email", email_id="m1").calls)),
    call("return_final_answer", answer="12 February", sources=["m1"]),
    call("return_final_answer", answer="I don't know", sources=[]),
    call("search_inbox"),
    call("send_email", to="everybody"),
    Reply((("read_email", '{"email_id"'),)),
    Reply(content="On 12 February."),
)
"""What the model says in each of the rollouts, after a first search and until it is out of turns: one call, two at a
time, answers, arguments that are missing, a tool that does not exist, what is no JSON, and no call."""


def decisive_parts(request: Mapping[str, Json]) -> str:
    """The parts of a request that decide the reply."""
    functions = [tool["function"] for tool in request["tools"]]
    tools = [[function["name"], function["description"], function["parameters"]] for function in functions]
    sampling = [request["seed"], request["temperature"], request["max_tokens"]]
    return json.dumps([list(map(identity, request["messages"])), tools, sampling])


@pytest.mark.long
@pytest.mark.parametrize("agent", [*PYTHON_AGENTS, *COMMANDS])
async def test_an_agent_asks_what_the_built_in_one_asks(data_dir: Path, database_url: str, agent: str) -> None:
    if missing := [program for program in PROGRAMS[agent] if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    requests_of, rewarded, begun = dict[str, Counter[str]](), dict[str, Counter[Json]](), dict[int, int]()

    async def script(request: Mapping[str, Json]) -> Reply:
        requests_of[player][decisive_parts(request)] += 1
        replies = [message for message in request["messages"] if message["role"] == "assistant"]
        if not replies:
            number = begun.setdefault(request["seed"], len(begun))
            return call("search_inbox", keywords=[str(number)])
        [number] = json.loads(replies[0]["tool_calls"][0]["function"]["arguments"])["keywords"]
        return SAID[int(number) % len(SAID)]

    async with (
        scripted_chat(script) as chat,
        served(reachable(data_dir, database_url), learn_loop, ScriptedBackend(chat.url)) as client,  # type: ignore[arg-type]
    ):
        with desk(COUNTS, SEED) as (desk_url, _), claiming(agent, str(client.base_url).rstrip("/"), desk_url, 4):
            for player in (BUILT_IN, agent):
                requests_of[player] = Counter()
                posted = await client.post("/learn-loop", json=learn_loop_of(player, COUNTS, SEED, CONFIG))
                run_id = posted.raise_for_status().json()["run_id"]
                run = await run_with(client, run_id, "completed", "failed")
                assert run["status"] == "completed", run["error"]
                rows = (await get(client, f"/runs/{run_id}/trajectories?limit=200"))["items"]
                assert not [row["error"] for row in rows if row["error"]]
                rewarded[player] = Counter((row["scenario_id"], row["turns"], row["reward"]) for row in rows)
    assert sorted(turns for _, turns, _ in rewarded[BUILT_IN].elements()) == [2, 2, 2, 2, 2, 2, 8, 8]
    assert requests_of[agent] == requests_of[BUILT_IN]
    assert rewarded[agent] == rewarded[BUILT_IN]
