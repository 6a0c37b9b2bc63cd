"""Forks of recorded rollouts on the real engine: exact replays, edits, and worlds that have changed."""

from collections.abc import Mapping
from typing import Any

import pytest

from learnloop_sales.environment import build as sales_email
from learnloop_service.environment.base import Environment, Json, Scenario, ToolResult
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.training.backends.embedded import EmbeddedBackend
from learnloop_service.training.journal import dump_rollout, load_rollout
from learnloop_service.training.rollout.agents.base import Agent
from learnloop_service.training.rollout.chat import EndpointChat, open_chat
from learnloop_service.training.rollout.fork import Edit, Fork, ReplayDiffers
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.rollout.rollout import RolloutLimits, replay, rollout
from learnloop_service.training.types import Rollout
from tests.integration.training.embedded_models import spec
from tests.integration.training.scripted_agents import Scripted, react

LIMITS = RolloutLimits(max_completion_tokens=64)


def environments(tmp_path: Any) -> dict[str, Environment]:
    return {"email_search": SyntheticEmailSearch(), "sales_email": sales_email({}, tmp_path)}


async def _recorded(
    environment: Environment,
    chat: EndpointChat,
    scenario: Scenario,
    seed: int,
    fork: Fork | None = None,
    agent: Agent | None = None,
) -> Rollout:
    played = await rollout(environment, scenario, chat, LIMITS, id=f"r{seed}", seed=seed, fork=fork, agent=agent)
    return load_rollout(scenario, dump_rollout(played))  # as the archive gives it back


def _items(played: Rollout) -> list[Any]:
    return [*played.trajectory.messages_and_choices]


def _replies(played: Rollout) -> list[list[tuple[str, float]]]:
    """Token ids and exact log-probabilities of every reply, which depend on the tokens before it."""
    choices = [item for item in _items(played) if not isinstance(item, dict)]
    contents = [choice.logprobs.content if choice.logprobs else None for choice in choices]
    return [[(token.token, token.logprob) for token in content or ()] for content in contents]


@pytest.mark.parametrize("name", ["email_search", "sales_email"])
async def test_unedited_with_its_own_seed_a_fork_is_the_rollout_again(
    name: str, backend: EmbeddedBackend, tmp_path: Any
) -> None:
    environment = environments(tmp_path)[name]
    policy = await backend.register(spec(base_model="learnloop/tiny"))
    forks = 0
    async with open_chat(policy.endpoint(0)) as chat:
        for seed, scenario in enumerate(environment.scenarios("train", 6, 7)):
            original = await _recorded(environment, chat, scenario, seed)
            items = _items(original)
            for turn in range(1, int(original.trajectory.metrics["turns"]) + 1):
                fork = Fork.of(items, turn)
                assert fork.turn == turn
                assert fork.exact is True
                await replay(environment, scenario, fork, LIMITS)
                again = await _recorded(environment, chat, scenario, seed, fork)
                assert messages_of(again.trajectory) == messages_of(original.trajectory)
                assert _replies(again) == _replies(original)
                assert again.outcome == original.outcome
                spent = [again.trajectory.metrics[metric] for metric in ("turns", "completion_tokens")]
                fresh = sum(map(len, _replies(original)[turn - 1 :]))
                assert spent == [original.trajectory.metrics["turns"], fresh]  # what was replayed is not paid for again
                forks += turn > 1
    assert forks


class _OtherWorld:
    """An environment whose tool answers something else from a call on, counted from 1."""

    def __init__(self, inner: Environment, since: int) -> None:
        self._inner, self._since = inner, since

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        episode, since, calls = self._inner.episode(scenario, max_turns), self._since, 0
        call = episode.call

        async def changed(name: str, arguments: Mapping[str, Json]) -> ToolResult:
            nonlocal calls
            calls += 1
            result = await call(name, arguments)
            return ToolResult("no emails", result.final) if calls >= since and not result.final else result

        episode.call = changed  # type: ignore[method-assign]
        return episode


async def _of_several_turns(environment: Environment, chat: EndpointChat, turns: int) -> Rollout:
    """A rollout of at least that many turns."""
    for seed, scenario in enumerate(environment.scenarios("train", 40, 3)):
        played = await _recorded(environment, chat, scenario, seed)
        if played.trajectory.metrics["turns"] >= turns:
            return played
    raise AssertionError("the tiny model ends too soon")


async def test_a_changed_world_is_refused_at_its_turn(backend: EmbeddedBackend) -> None:
    environment = SyntheticEmailSearch()
    policy = await backend.register(spec(base_model="learnloop/tiny"))
    async with open_chat(policy.endpoint(0)) as chat:
        original = await _of_several_turns(environment, chat, 3)
        fork = Fork.of(_items(original), 3)
        changed: Any = _OtherWorld(environment, since=2)
        with pytest.raises(ReplayDiffers, match="differs in turn 2: the result of ") as refused:
            await replay(changed, original.scenario, fork, LIMITS)
        assert refused.value.turn == 2
        assert refused.value.found == "no emails"
        assert refused.value.recorded == messages_of(original.trajectory)[5]["content"]
        assert refused.value.tool in ("search_inbox", "read_email")
        with pytest.raises(ReplayDiffers):
            await rollout(changed, original.scenario, chat, LIMITS, id="x", seed=1, fork=fork)
        await replay(changed, original.scenario, Fork.of(_items(original), 2), LIMITS)
        other = next(
            candidate for candidate in environment.scenarios("train", 9, 3) if candidate.id != original.scenario.id
        )
        with pytest.raises(ReplayDiffers, match="differs in its opening messages"):
            await replay(environment, other, fork, LIMITS)


async def test_what_is_edited_is_what_the_model_reads(backend: EmbeddedBackend) -> None:
    environment = SyntheticEmailSearch()
    policy = await backend.register(spec(base_model="learnloop/tiny"))
    async with open_chat(policy.endpoint(0)) as chat:
        original = await _of_several_turns(environment, chat, 3)
        items, before = _items(original), messages_of(original.trajectory)

        async def edited(turn: int, edit: Edit) -> list[Any]:
            played = await _recorded(environment, chat, original.scenario, 5, Fork.of(items, turn, edit))
            assert messages_of(played.trajectory)[: len(before)] != before
            return messages_of(played.trajectory)

        # a tool result
        messages = await edited(2, Edit("nothing was found", message=3))
        assert messages[3] == {**before[3], "content": "nothing was found"}
        assert messages[:3] == before[:3]
        # the question
        messages = await edited(2, Edit("Who wrote?", message=1))
        assert [messages[1]["content"], messages[2:4]] == ["Who wrote?", before[2:4]]
        # a reply, whose tokens are then those of its text
        messages = await edited(3, Edit("Let me see.", message=2))
        assert messages[2] == {**before[2], "content": "Let me see."}
        assert not Fork.of(items, 3, Edit("Let me see.", message=2)).exact
        # one message more
        messages = await edited(3, Edit("Be quick."))
        assert messages[:7] == [*before[:6], {"role": "user", "content": "Be quick."}]
        assert messages[7]["role"] == "assistant"


async def test_an_agent_that_owns_its_loop_is_run_again(backend: EmbeddedBackend) -> None:
    environment, agent = SyntheticEmailSearch(), Scripted(react)
    policy = await backend.register(spec(base_model="learnloop/tiny"))
    forks = 0
    async with open_chat(policy.endpoint(0)) as chat:
        for seed, scenario in enumerate(environment.scenarios("train", 4, 7)):
            original = await _recorded(environment, chat, scenario, seed, agent=agent)
            for turn in range(1, int(original.trajectory.metrics["turns"]) + 1):
                fork = Fork.of(_items(original), turn)
                await replay(environment, scenario, fork, LIMITS, agent)
                again = await _recorded(environment, chat, scenario, seed, fork, agent)
                assert _replies(again) == _replies(original)
                assert again.outcome == original.outcome
                forks += turn > 1
                if turn > 2:
                    changed: Any = _OtherWorld(environment, since=1)
                    with pytest.raises(ReplayDiffers, match="differs in turn 1"):
                        await replay(changed, scenario, fork, LIMITS, agent)
                    with pytest.raises(ReplayDiffers, match="differs in turn 1"):
                        await rollout(changed, scenario, chat, LIMITS, id="x", seed=1, fork=fork, agent=agent)
    assert forks


def test_a_turn_or_a_message_that_is_not_there_is_refused() -> None:
    conversation: list[Any] = [{"role": "user", "content": "Hello"}]
    with pytest.raises(ValueError, match="has no turn 1; it has 0"):
        Fork.of(conversation, 1)
