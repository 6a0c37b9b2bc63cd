"""Rollouts in environments of OpenEnv, over real sockets, with good servers and bad ones."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.base import Environment
from learnloop_service.environment.given_scenarios import SPLITS
from learnloop_service.environment.registry import build
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.types import Rollout
from tests.conditions import until
from tests.fakes.openenv_server import CALL_TOOL, GUESS, openenv_server
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.integration.training.scripted_replies import in_turn

UNUSED = Path("unused")
EPISODES = [{"reset": {"seed": seed}} for seed in range(10)]
DONE = Reply(content="I give up")


def environment(url: str, *, hosts: Sequence[str] = ("127.0.0.1",), secrets: Any = None, **config: Any) -> Environment:
    access = EnvironmentAccess(load_settings(environment_hosts=hosts, environment_secrets=secrets or {}))
    return build("openenv", {"url": url, **config}, UNUSED, access)


async def roll(
    game: Environment, replies: Sequence[Reply], reset: Mapping[str, Any] | None = None, **options: Any
) -> Rollout:
    async with scripted_chat(in_turn(replies)) as model, open_chat(model.endpoint()) as chat:
        scenario = game.ask({"reset": dict(reset or {})})
        return await rollout(
            game, scenario, chat, **{"id": "r1", "seed": 7, "limits": RolloutLimits(timeout_s=60.0), **options}
        )


def read(played: Rollout) -> list[Any]:
    """What the model read, from the first observation on."""
    return [message["content"] for message in messages_of(played.trajectory) if message["role"] in ("user", "tool")]


def facts(played: Rollout, *names: str) -> list[Any]:
    return [played.outcome[name] for name in names]


async def test_a_game_is_played_to_its_end() -> None:
    async with openenv_server() as server:
        game = environment(server.url)
        played = await roll(game, [call("act", number=1), call("act", number=3)], {"seed": 3, "level": "easy"})
    assert played.error is None
    assert server.resets == [{"seed": 3, "level": "easy"}]
    assert read(played) == ["A number from 0 to 4.", '{"hint": "higher", "left": 2}']
    assert facts(played, "finish", "reported_reward", "rewards", "steps") == ["done", 0.75, [-0.25, 1.0], 2]
    [tool] = played.trajectory.tools or []
    assert tool["function"] == {
        "name": "act",
        "description": "Guess the number.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"number": GUESS["properties"]["number"]},
            "required": ["number"],
        },
    }
    assert game.reward(played.outcome, 0.0) == {"reward": 0.75}
    assert game.success(played.outcome, 0.0)
    assert game.answer(played.outcome) == {"answer": '{"hint": "right", "left": 1}', "source_ids": [], "success": True}


async def test_the_last_reward_can_be_the_episodes_and_the_task_is_shown() -> None:
    async with openenv_server() as server:
        game = environment(server.url, reward="last", success_from=0.9, instructions="Guess well.")
        scenario = game.ask({"reset": {"seed": 4}, "task": "Find it."})
        script = in_turn([call("act", number=0), call("act", number=4)])
        async with scripted_chat(script) as model, open_chat(model.endpoint()) as chat:
            played = await rollout(game, scenario, chat, id="r1", seed=7)
    opening = messages_of(played.trajectory)[:2]
    assert [message["content"] for message in opening] == ["Guess well.", "Find it.\n\nA number from 0 to 4."]
    assert facts(played, "reported_reward", "rewards") == [1.0, [-0.25, 1.0]]
    assert game.success(played.outcome, 0.0)


async def test_a_model_learns_from_what_the_environment_refuses() -> None:
    async with openenv_server() as server:
        replies = [call("act", number="two"), call("jump"), call("act", number=2)]
        played = await roll(environment(server.url), replies, {"seed": 2})
    assert played.error is None
    assert "Input should be a valid integer" in read(played)[1]
    assert read(played)[2] == "Error: there is no tool 'jump'; there are: act"
    assert facts(played, "reported_reward", "steps", "errors") == [1.0, 1, 2]


async def test_tools_of_a_server_are_offered_and_called() -> None:
    async with openenv_server(CALL_TOOL) as server:
        game = environment(server.url)
        played = await roll(game, [call("add", a=1, b=2), call("gone_away"), DONE])
        chosen = await roll(environment(server.url, allow_tools=["add"]), [DONE])
        missing = await roll(environment(server.url, allow_tools=["subtract"]), [DONE])
    assert played.error is None
    assert read(played)[1:] == ["3", "Error: Unknown tool: gone/away"]
    assert {tool["function"]["name"] for tool in played.trajectory.tools or ()} == {"add", "gone_away"}
    assert facts(played, "finish", "reported_reward", "errors", "answer") == ["answer", 0.5, 1, "I give up"]
    assert [tool["function"]["name"] for tool in chosen.trajectory.tools or ()] == ["add"]
    assert "the OpenEnv server has no tool subtract; it has: add, gone/away" in str(missing.error)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang", "did not answer a step within 1 s"),
        ("leave", "the connection to the OpenEnv server broke"),
        ("flood", "the connection to the OpenEnv server broke"),
        ("nan", "gave a reward of nan"),
        ("many_values", "sent a message of more than 500,000 JSON values"),
        ("not JSON", "sent no observation: 'not JSON'"),
        ('{"type": "observation", "data": {"observation": [1]}}', "an observation that is no object"),
        ("refuse", "did not begin an episode: no such level"),
        ("over", "was over before it began"),
    ],
)
async def test_a_rollout_whose_server_fails_failed(fault: str, reason: str) -> None:
    async with openenv_server() as server:
        game = environment(server.url, step_timeout_s=1 if fault == "hang" else 60)
        played = await roll(game, [call("act", number=1), DONE], {"fault": fault})
        await until(lambda: server.episodes == 0)
    assert reason in str(played.error)


@pytest.mark.parametrize(
    ("replies", "reset", "finish", "reward"),
    [
        ([DONE], {}, "answer", 0.0),
        ([Reply((("act", "{number"),))], {}, "malformed", 0.0),
        ([call("act", number=1)], {"seed": 3}, "out_of_turns", -0.25),
        ([call("act", number=1)], {"fault": "no_reward"}, "done", None),
    ],
)
async def test_what_an_agent_has_earned_however_it_ends(
    replies: Sequence[Reply], reset: Mapping[str, Any], finish: str, reward: float | None
) -> None:
    async with openenv_server() as server:
        played = await roll(environment(server.url), replies, reset, limits=RolloutLimits(max_turns=1))
    assert played.error is None
    assert facts(played, "finish", "reported_reward") == [finish, reward]


async def test_a_full_server_is_waited_for() -> None:
    async with openenv_server(capacity=1) as server:
        game = environment(server.url)
        played = [roll(game, [call("act", number=seed), DONE], {"seed": seed}) for seed in range(3)]
        rollouts = await asyncio.gather(*played)
    assert [rollout_of_seed.error for rollout_of_seed in rollouts] == [None] * 3
    assert [rollout_of_seed.outcome["reported_reward"] for rollout_of_seed in rollouts] == [1.0] * 3
    assert server.most == 1
    assert server.refused > 0


async def test_where_a_server_may_be() -> None:
    async with openenv_server() as server:
        inside = await roll(environment(server.url, hosts=()), [DONE])
        moved = await roll(environment(f"{server.url}/moved"), [DONE])
        none = await roll(environment(f"{server.url}/nothing"), [DONE])
        shouted = await roll(environment(server.url.replace("http", "HTTP") + "/"), [DONE])
        secrets = {server.url: {"token": SecretStr("Bearer s3cret")}}
        authorized = await roll(environment(server.url, secrets=secrets, headers={"Authorization": "token"}), [DONE])
    gone = await roll(environment(server.url), [DONE])
    assert str(inside.error).startswith("EpisodeFailed: ")
    assert "an address that is not public" in str(inside.error)
    assert "cannot follow redirect" in str(moved.error)
    assert "answered 404: is it an OpenEnv server?" in str(none.error)
    assert authorized.error is None
    assert shouted.error is None
    assert server.headers[-1]["Authorization"] == "Bearer s3cret"
    assert "cannot be read: ConnectError" in str(gone.error)


def test_each_seed_belongs_to_one_split() -> None:
    game = build("openenv", {}, UNUSED)
    seeds = {
        split: {scenario.task["reset"]["seed"] for run in range(5) for scenario in game.scenarios(split, 50, seed=run)}
        for split in SPLITS
    }
    assert all(len(seeds_of_split) > 200 for seeds_of_split in seeds.values())
    assert len(set.union(*seeds.values())) == sum(map(len, seeds.values()))
    assert game.scenarios("train", 2, seed=1, start=3) == game.scenarios("train", 5, seed=1)[3:]


def test_episodes_are_split_once_and_for_all() -> None:
    game = build("openenv", {"scenarios": EPISODES}, UNUSED)
    counts = {
        split: len({scenario.id for scenario in game.scenarios(split, 50, seed=1)})
        for split in ("train", "validation", "test")
    }
    assert counts == {"train": 6, "validation": 2, "test": 2}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"colour": "red"}, "the config of openenv has no colour; it takes: allow_tools,"),
        ({"url": 3}, "url must be a string that is not empty"),
        ({"headers": {"A": 1}}, "headers must give names of secrets"),
        ({"reward": "mean"}, "reward must be one of sum, last, not 'mean'"),
        ({"success_from": "high"}, "success_from must be a number"),
        ({"scenarios": EPISODES[:2]}, "a list of 3 to 10000 episodes"),
        ({"scenarios": [*EPISODES, {"reset": 3}]}, "scenario number 10: reset must be an object of arguments"),
        ({"scenarios": [*EPISODES, {"seed": 3}]}, "scenario number 10 has no seed; it takes: id, reset, split, task"),
        ({"scenarios": [*EPISODES, {"id": "given.0"}]}, "two scenarios have the same id"),
    ],
)
def test_a_bad_config_is_said_plainly(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build("openenv", config, UNUSED)


def test_what_a_run_needs_is_said_before_it_begins() -> None:
    with pytest.raises(ValueError, match="openenv needs a url"):
        build("openenv", {}, UNUSED, EnvironmentAccess(load_settings()))
    with pytest.raises(ValueError, match="must start with https:// or http://"):
        environment("ftp://x.example")
    with pytest.raises(ValueError, match=r"there is no secret 'token' for http://x\.example"):
        environment("http://x.example", headers={"Authorization": "token"})
