"""Rollouts over HTTP against a scripted model."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from learnloop_service.environment.base import EpisodeFailed, Scenario, Tool, ToolResult
from learnloop_service.environment.contract import checked
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.email_search.tools import EmailEpisode
from learnloop_service.environment.full_context import CODE
from learnloop_service.judges.base import Judgement, Score
from learnloop_service.training.protocol.full_context import full_context_message
from learnloop_service.training.recorded_calls import RecordedCalls
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.rollout.rollout import RolloutLimits, failed, rollout, total
from learnloop_service.training.scoring import assign_rewards, success_rate
from learnloop_service.training.types import FailureKind, Rollout
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat
from tests.integration.training.scripted_replies import ENVIRONMENT, READ, RIGHT, SCENARIO, hang, in_turn


async def no_longer_asked(model: ScriptedChat) -> None:
    await until(lambda: not model.answering)


async def roll(model: ScriptedChat, scenario: Scenario = SCENARIO, **options: Any) -> Rollout:
    async with open_chat(model.endpoint()) as chat:
        return await rollout(ENVIRONMENT, scenario, chat, **{"id": "r1", "seed": 7, **options})


async def test_everything_is_recorded() -> None:
    async with scripted_chat(in_turn([call("search_inbox", keywords=["nothing like it"]), READ, RIGHT])) as model:
        played = await roll(model, limits=RolloutLimits(temperature=0.5, max_completion_tokens=99))
    assert played.error is None
    assert played.id == "r1"
    assert played.scenario == SCENARIO
    assert [message["role"] for message in messages_of(played.trajectory)] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert played.outcome["finish"] == "answered"
    assert played.outcome["sources_correct"]
    assert played.outcome["read_source"]
    metrics = played.trajectory.metrics
    assert metrics["turns"] == 3
    assert metrics["prompt_tokens"] == 150
    assert metrics["completion_tokens"] == 30
    assert 0 <= metrics["sampling_s"] + metrics["tools_s"] <= metrics["duration"] == played.seconds
    assert played.trajectory.tools == model.requests[0]["tools"]
    assert {request["temperature"] for request in model.requests} == {0.5}
    assert {request["max_tokens"] for request in model.requests} == {99}
    assert all(request["logprobs"] for request in model.requests)
    # The model gets back what it said, and every turn has another seed.
    assert [message["role"] for message in model.requests[2]["messages"]][-2:] == ["assistant", "tool"]
    assert len({request["seed"] for request in model.requests}) == 3
    assert total([played, played], "turns") == 6
    assert failed([played]) == 0


async def test_a_rollout_that_is_made_again_continues_where_it_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.training.recorded_calls.KEEP_AFTER_S", 0.0)
    search = replace(call("search_inbox", keywords=["nothing like it"]), tokens=(5, 6))
    replies, parts = [search, replace(READ, tokens=(7,)), RIGHT], list[str]()

    async def never_the_last(request: Mapping[str, Any]) -> Reply:
        return replies[len(parts)] if len(parts) < 2 else await hang(request)

    async with scripted_chat(in_turn(replies)) as model:
        calm = await roll(model)
    async with scripted_chat(never_the_last) as model:
        cut = asyncio.create_task(roll(model, recorded=RecordedCalls(keep=parts.append)))
        await until(lambda: len(model.requests) == 3)
        cut.cancel()
    async with scripted_chat(in_turn([RIGHT])) as model:
        endpoint = replace(model.endpoint(), remembers=True, tells_token_ids=True)
        async with open_chat(endpoint) as chat:
            again = await rollout(ENVIRONMENT, SCENARIO, chat, id="r1", seed=7, recorded=RecordedCalls(parts))
        [request] = model.requests
    assert len(parts) == 2
    assert messages_of(again.trajectory) == messages_of(calm.trajectory)
    assert again.outcome == calm.outcome
    assert again.error is None
    counted = ("turns", "prompt_tokens", "completion_tokens")
    assert [again.trajectory.metrics[name] for name in counted] == [calm.trajectory.metrics[name] for name in counted]
    # Its server may have forgotten what it sampled, so the request has the ids.
    token_ids = [message["token_ids"] for message in request["messages"] if message["role"] == "assistant"]
    assert token_ids == [[5, 6], [7]]


async def test_what_was_not_asked_the_same_is_asked_anew() -> None:
    async with scripted_chat(in_turn([RIGHT, RIGHT])) as model:
        recorded = RecordedCalls()
        await roll(model, recorded=recorded)
        await roll(model, recorded=recorded, seed=8)
        await roll(model, recorded=recorded, seed=8)
    assert len(model.requests) == 2


async def test_the_seed_decides_the_seeds_of_the_turns() -> None:
    async with scripted_chat(in_turn([READ, RIGHT] * 3)) as model:
        for seed in (1, 1, 2):
            await roll(model, seed=seed)
    seeds = [request["seed"] for request in model.requests]
    assert seeds[:2] == seeds[2:4]
    assert set(seeds[:2]).isdisjoint(seeds[4:])


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(content="It is on 14 March."), "There is no tool call in the reply. (stop): 'It is on 14 March.'"),
        (Reply(), "no tool call"),
        (Reply((("read_email", '{"email_id": "a"'),)), "not JSON"),
        (Reply((("read_email", ""),)), "not JSON"),
        (Reply((("read_email", "[" * 100_000),)), "not JSON"),
        (Reply((("read_email", '{"email_id": ' + "1" * 5_000 + "}"),)), "not JSON"),
        (Reply((("read_email", '{"email_id": "\\ud800"}'),)), "not JSON"),
        (Reply((("read_email", '["a"]'),)), "not an object"),
        (Reply((("read_email", "null"),)), "not an object"),
        (call("read_email", email_id=3), "must be a string"),
        (call("read_email", email_id="a", folder="b"), "no argument folder"),
        (call("delete_email", email_id="a"), "there is no tool 'delete_email'"),
        (call("return_final_answer", answer="14 March"), "sources"),
    ],
)
async def test_a_malformed_call_ends_the_rollout_and_is_paid_as_such(reply: Reply, message: str) -> None:
    async with scripted_chat(in_turn([READ, reply])) as model:
        played = await roll(model)
    assert played.error is None
    assert played.outcome["finish"] == "malformed"
    assert message in played.outcome["detail"]
    assert len(model.requests) == 2
    assert -2 <= sum(ENVIRONMENT.reward(played.outcome, 0.0).values()) <= -1


@pytest.mark.parametrize("text", ["\x00", "' OR 1=1 --", '" AND', "", "é" * 50])
async def test_odd_texts_in_well_formed_calls_are_no_failure(text: str) -> None:
    calls = [
        call("search_inbox", keywords=[text], sender=text, recipient=text),
        call("read_email", email_id=text),
        call("return_final_answer", answer=text, sources=[text]),
    ]
    async with scripted_chat(in_turn(calls)) as model:
        played = await roll(model)
    assert played.error is None
    assert played.outcome["finish"] in ("answered", "gave_up")


async def test_several_calls_of_one_turn_are_executed_in_order() -> None:
    several = Reply((*READ.calls, *call("read_email", email_id="nowhere").calls))
    ending = Reply((*READ.calls, *RIGHT.calls, *call("read_email", email_id="too late").calls))
    async with scripted_chat(in_turn([several, ending])) as model:
        played = await roll(model)
    assert played.trajectory.metrics["turns"] == 2
    tools = [message for message in messages_of(played.trajectory) if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in tools] == ["call_2_0", "call_2_1", "call_5_0"]
    assert tools[1]["content"] == "There is no mail nowhere."
    assert played.outcome["finish"] == "answered"
    assert played.outcome["turns"] == 4
    assert json.loads(model.requests[1]["messages"][2]["tool_calls"][1]["function"]["arguments"]) == {
        "email_id": "nowhere"
    }


async def test_a_malformed_call_among_others_ends_the_turn_there() -> None:
    async with scripted_chat(in_turn([Reply((*READ.calls, ("read_email", "{"), *RIGHT.calls))])) as model:
        played = await roll(model)
    assert played.outcome["finish"] == "malformed"
    assert played.outcome["answer"] is None
    assert messages_of(played.trajectory)[-1]["role"] == "tool"


async def test_turns_run_out() -> None:
    async with scripted_chat(in_turn([READ] * 9)) as model:
        played = await roll(model, limits=RolloutLimits(max_turns=3))
    assert played.error is None
    assert played.outcome["finish"] == "out_of_turns"
    assert len(model.requests) == 3
    assert "3 turns" in played.outcome["detail"]


def too_long(message: str, code: str | None = None, status: int = 400) -> Reply:
    """A server's refusal of a conversation that does not fit."""
    return Reply(status=status, body={"error": {"message": message, "type": "invalid_request_error", "code": code}})


FULL_CONTEXTS = {
    "ours": too_long(full_context_message(600, 512), CODE),
    "a code": too_long("Too much.", CODE),
    "vLLM": too_long("The decoder prompt (length 9048) is longer than the maximum model length of 2048."),
    "SGLang": too_long("The input (9048 tokens) is longer than the model's context length (2048 tokens)."),
    "llama.cpp": too_long("the request exceeds the available context size, try increasing it"),
    "Anthropic": too_long("prompt is too long: 9048 tokens > 2048 maximum"),
    "TGI": too_long("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048.", status=422),
}


@pytest.mark.parametrize("refusal", FULL_CONTEXTS.values(), ids=FULL_CONTEXTS)
async def test_a_full_context_is_an_outcome(refusal: Reply) -> None:
    async with scripted_chat(in_turn([READ, refusal])) as model:
        played = await roll(model)
    assert played.error is None
    assert played.outcome["finish"] == "full_context"
    assert len(model.requests) == 2
    assert "fills the model's context" in played.outcome["detail"]
    assert played.trajectory.metrics["turns"] == 1
    assert messages_of(played.trajectory)[-1]["role"] == "tool"


async def test_a_full_context_is_learnt_from_and_counts_as_no_success() -> None:
    async with scripted_chat(in_turn([READ, FULL_CONTEXTS["ours"]])) as model:
        full = await roll(model)
    async with scripted_chat(in_turn([READ, RIGHT])) as model:
        right = await roll(model, id="r2")
    group = assign_rewards(ENVIRONMENT, SCENARIO, [full, right], Judgement([Score(0.0, "none"), Score(1.0, "right")]))
    assert group.skipped is None
    low, high = group.rollouts
    assert low.advantage is not None
    assert high.advantage is not None
    assert low.advantage < 0 < high.advantage
    assert success_rate(group.rollouts) == 0.5


async def test_another_refusal_is_a_failed_rollout() -> None:
    async with scripted_chat(in_turn([READ, too_long("temperature must be at most 2")])) as model:
        played = await roll(model)
    assert played.failure is not None


async def test_a_model_that_does_not_reply_is_a_failed_rollout() -> None:
    async with scripted_chat(hang) as model:
        played = await roll(model, limits=RolloutLimits(timeout_s=0.05))
        await no_longer_asked(model)
    assert played.error == "the rollout took longer than 0.05 s"
    assert played.outcome["finish"] == "open"
    assert failed([played]) == 1


@pytest.mark.parametrize(("status", "requests", "name"), [(500, 3, "InternalServer"), (400, 1, "BadRequest")])
async def test_an_error_reply_is_a_failed_rollout(status: int, requests: int, name: str) -> None:
    async with scripted_chat(in_turn([READ, *[Reply(status=status)] * 9])) as model:
        played = await roll(model)
    assert played.error is not None
    assert played.error.startswith(f"{name}Error: ")
    assert "as scripted" in played.error
    assert len(model.requests) == 1 + requests
    assert len(messages_of(played.trajectory)) == 4  # what happened before is kept


async def test_a_passing_error_is_tried_again() -> None:
    async with scripted_chat(in_turn([Reply(status=500), READ, Reply(status=429), Reply(status=503), RIGHT])) as model:
        played = await roll(model)
    assert played.error is None
    assert played.outcome["finish"] == "answered"
    assert model.requests[0]["seed"] == model.requests[1]["seed"]


async def test_a_sampler_that_is_away_is_the_backend_that_is_away() -> None:
    """Its run waits then, as for an engine that cannot be reached."""
    away = {"error": {"message": "vLLM did not start: out of memory", "code": "sampler_unavailable"}}
    async with scripted_chat(in_turn([Reply(status=503, body=away)] * 3)) as model:
        played = await roll(model)
    assert played.failure is not None
    assert played.failure.kind is FailureKind.BACKEND_AWAY
    assert "out of memory" in played.failure.message


@pytest.mark.parametrize("body", [{}, {"choices": []}, [], "hello", {"choices": [{"index": 0}]}])
async def test_a_reply_that_is_no_completion_is_a_failed_rollout(body: Any) -> None:
    async with scripted_chat(in_turn([Reply(body=body)])) as model:
        played = await roll(model)
    assert played.error is not None


async def test_a_closed_port_is_a_failed_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.training.rollout.chat._RETRIES", 0)
    async with scripted_chat(hang) as model:
        pass
    played = await roll(model)
    assert played.error is not None
    assert played.error.startswith("APIConnectionError")


async def test_cancelling_passes_through_and_ends_the_request() -> None:
    async with scripted_chat(hang) as model:
        work = asyncio.create_task(roll(model))
        await until(lambda: model.answering)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await no_longer_asked(model)
    assert len(model.requests) == 1


async def test_a_scenario_that_cannot_be_opened_is_an_error() -> None:
    async with scripted_chat(hang) as model:
        with pytest.raises(ValueError, match="nobody@nowhere"):
            await roll(model, Scenario("x", "train", {"inbox_address": "nobody@nowhere"}))


class Riddle(SyntheticEmailSearch):
    """A conversation without tools: a reply is the answer, unless it asks for a hint."""

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "RiddleEpisode":
        return RiddleEpisode(scenario, self._inbox(scenario.task["inbox_address"]), max_turns or 3)


class RiddleEpisode(EmailEpisode):
    """Takes replies without a tool call."""

    tools: Sequence[Tool] = ()
    replies: tuple[str, ...] = ()

    def reply(self, text: str) -> ToolResult:
        self.replies += (text,)
        return ToolResult("It has keys.", final=text != "a hint, please")

    def outcome(self) -> dict[str, Any]:
        return {"finish": "answered" if self.replies else "malformed", "replies": list(self.replies)}


async def test_a_reply_without_a_tool_call_is_valid_where_the_episode_takes_it() -> None:
    async with (
        scripted_chat(in_turn([Reply(content="a hint, please"), Reply(content="a piano")])) as model,
        open_chat(model.endpoint()) as chat,
    ):
        played = await rollout(checked("riddle", Riddle()), SCENARIO, chat, id="r1", seed=7)
    assert played.error is None
    assert played.outcome == {"finish": "answered", "replies": ["a hint, please", "a piano"]}
    assert [message["role"] for message in messages_of(played.trajectory)] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert model.requests[1]["messages"][-1] == {"role": "user", "content": "It has keys."}
    assert all("tools" not in request for request in model.requests)


class Waiting(Riddle):
    """Its episodes wait for their turn, longer than a rollout may take, before there are tools."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.steps: list[str] = []

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "WaitingEpisode":
        episode = WaitingEpisode(scenario, self._inbox(scenario.task["inbox_address"]), max_turns or 3)
        episode.environment = self
        return episode


class WaitingEpisode(RiddleEpisode):
    """Notes what is done with it."""

    environment: Waiting

    async def open(self) -> None:
        turn = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * TURN_TIMEOUT_S, turn.set)
        await turn.wait()
        self.environment.steps.append("open")
        if self.environment.failure is not None:
            raise self.environment.failure
        self.tools = EmailEpisode.tools

    async def close(self) -> None:
        self.environment.steps.append("close")


TURN_TIMEOUT_S = 0.1


async def test_waiting_for_a_turn_is_not_the_rollouts_time() -> None:
    environment = Waiting()
    async with scripted_chat(hang) as model, open_chat(model.endpoint()) as chat:
        played = await rollout(
            checked("riddle", environment),
            SCENARIO,
            chat,
            id="r1",
            seed=7,
            limits=RolloutLimits(timeout_s=TURN_TIMEOUT_S),
        )
    assert played.failure is not None
    assert played.failure.kind is FailureKind.TIMEOUT
    assert environment.steps == ["open", "close"]
    assert [tool["function"]["name"] for tool in played.trajectory.tools or ()] == [
        tool.name for tool in EmailEpisode.tools
    ]


async def test_an_episode_that_cannot_be_opened_fails_its_rollout_and_is_closed() -> None:
    environment = Waiting(EpisodeFailed("no server"))
    async with scripted_chat(hang) as model, open_chat(model.endpoint()) as chat:
        played = await rollout(checked("riddle", environment), SCENARIO, chat, id="r1", seed=7)
    assert played.error == "EpisodeFailed: no server"
    assert environment.steps == ["open", "close"]
    assert not model.requests
