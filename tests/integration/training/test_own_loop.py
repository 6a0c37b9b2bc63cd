"""Agents that own their loop, over HTTP against a scripted model: what they do to their history, and how they fail."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from openai import OpenAI

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.trace import tracing
from learnloop_service.training.budget import BudgetReached, Usage
from learnloop_service.training.journal import dump_rollout, load_rollout
from learnloop_service.training.rollout.agents import own_loop
from learnloop_service.training.rollout.agents.base import AgentTask
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.histories import messages_of, transcript_of
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.types import FailureKind, Rollout
from tests.conditions import until
from tests.fakes.noted_spans import Noted
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat
from tests.integration.training.scripted_agents import Scripted, answer, ask, react
from tests.integration.training.scripted_replies import READ, RIGHT, SCENARIO, hang, in_turn

ENVIRONMENT = SyntheticEmailSearch()


async def roll(model: ScriptedChat, work: Callable[[AgentTask], Awaitable[str]], **options: Any) -> Rollout:
    async with open_chat(model.endpoint()) as chat:
        return await rollout(ENVIRONMENT, SCENARIO, chat, **{"id": "r1", "seed": 7, "agent": Scripted(work), **options})


def shape(played: Rollout) -> list[list[str]]:
    """The sequences: roles, where `*` is what is trained."""
    histories: list[Any] = [played.trajectory, *played.trajectory.additional_histories]
    return [
        ["*" if not isinstance(item, dict) else item["role"] for item in history.messages_and_choices]
        for history in histories
    ]


@pytest.fixture(params=["by hand", "langgraph"])
def agent(request: pytest.FixtureRequest) -> Any:
    """The built-in loop once more."""
    if request.param == "by hand":
        return Scripted(react)
    from learnloop_service.training.rollout.agents.langgraph_react import LangGraphAgent  # its import takes a second

    return LangGraphAgent()


async def test_an_agent_asks_and_is_judged_as_the_built_in_loop(agent: Any) -> None:
    several = Reply((*READ.calls, *call("read_email", email_id="nowhere").calls))
    turns = [several, call("search_inbox", keywords=["nothing like it"]), RIGHT]
    async with scripted_chat(in_turn([*turns, *turns])) as model:
        outside = await roll(model, react, agent=agent)
        built_in = await roll(model, react, agent=None)
    compared = [[_compared(request) for request in requests] for requests in (model.requests[:3], model.requests[3:])]
    assert compared[0] == compared[1]
    assert outside.error is None
    assert outside.outcome == built_in.outcome
    assert outside.outcome["finish"] == "answered"
    assert shape(outside) == shape(built_in) == [["system", "user", "*", "tool", "tool", "*", "tool", "*"]]
    counted = ("turns", "prompt_tokens", "completion_tokens")
    assert [outside.trajectory.metrics[name] for name in counted] == [3, 150, 30]
    assert outside.trajectory.tools == built_in.trajectory.tools


def _compared(request: Mapping[str, Any]) -> Any:
    """What the model is shown and how it is sampled, in one form: clients write empty contents and arguments anew."""
    messages = [
        {
            **message,
            "content": message.get("content") or "",
            "tool_calls": [
                (tool_call["id"], tool_call["function"]["name"], json.loads(tool_call["function"]["arguments"]))
                for tool_call in message.get("tool_calls") or ()
            ],
        }
        for message in request["messages"]
    ]
    return {**request, "messages": messages}


@pytest.mark.parametrize(
    ("replies", "requests", "finish", "message"),
    [
        (
            [READ, Reply(content="It is on 14 March.")],
            2,
            "malformed",
            "without a final tool call: 'It is on 14 March.'",
        ),
        ([call("delete_email", email_id="a"), RIGHT], 1, "malformed", "there is no tool 'delete_email'"),
        ([call("read_email", email_id=3), RIGHT], 1, "malformed", "must be a string"),
        ([Reply((("read_email", '{"email_id": '),)), RIGHT], 1, "malformed", "not JSON"),
        ([READ] * 9, 3, "out_of_turns", "no final answer within 3 turns"),
    ],
)
async def test_ends_that_the_environment_judges(
    agent: Any, replies: list[Reply], requests: int, finish: str, message: str
) -> None:
    async with scripted_chat(in_turn(replies)) as model:
        played = await roll(model, react, agent=agent, limits=RolloutLimits(max_turns=3))
    assert played.error is None
    assert played.outcome["finish"] == finish
    assert message in played.outcome["detail"]
    assert len(model.requests) == requests


async def test_a_rewritten_history_is_another_sequence() -> None:
    async def summarise(task: AgentTask) -> str:
        opening: list[Any] = list(task.messages)
        first = await ask(task, opening)
        results = await answer(task, first)
        summary = await ask(task, [{"role": "user", "content": f"Summarise: {results[0]['content']}"}])
        shorter = [*opening, {"role": "user", "content": f"So far: {summary['content']}"}]
        last = await ask(task, shorter)
        await answer(task, last)
        return ""

    async with scripted_chat(in_turn([READ, Reply(content="Kickoff mail read."), RIGHT])) as model:
        played = await roll(model, summarise)
    assert played.error is None
    assert played.outcome["finish"] == "answered"
    assert shape(played) == [["system", "user", "*"], ["user", "*"], ["system", "user", "user", "*"]]
    assert messages_of(played.trajectory)[-1]["tool_calls"][0]["function"]["name"] == "read_email"
    read = [message["role"] for message in transcript_of(played.trajectory)]
    assert read == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]  # by a judge, each once


async def test_parallel_calls_and_forks_train_nothing_twice() -> None:
    async def fork(task: AgentTask) -> str:
        opening: list[Any] = list(task.messages)
        one, other = await asyncio.gather(ask(task, opening), ask(task, opening))
        assert one == other  # the scripted model says the same
        branches = [
            [*opening, one, *[{**result, "content": text} for result in await answer(task, one)]] for text in "ab"
        ]
        for branch in branches:
            await ask(task, branch)
        await answer(task, await ask(task, [*branches[0], {"role": "user", "content": "Answer now."}]))
        return ""

    async with scripted_chat(in_turn([READ, READ, Reply(content="x"), Reply(content="y"), RIGHT])) as model:
        played = await roll(model, fork)
    assert played.error is None
    assert played.outcome["finish"] == "answered"
    trained = [roles.count("*") for roles in shape(played)]
    assert sum(trained) == played.trajectory.metrics["turns"] == 5
    assert shape(played)[:2] == [["system", "user", "*", "tool", "*"], ["system", "user", "*", "tool", "*"]]
    assert shape(played)[2:] == [["system", "user", "assistant", "tool", "user", "*"]]


async def test_the_journal_keeps_every_sequence() -> None:
    async def side_question(task: AgentTask) -> str:
        await ask(task, [{"role": "user", "content": "Hello?"}])
        return await react(task)

    async with scripted_chat(in_turn([Reply(content="Hello."), READ, RIGHT])) as model:
        played = await roll(model, side_question)
    again = load_rollout(SCENARIO, dump_rollout(played))
    assert shape(again) == shape(played) == [["user", "*"], ["system", "user", "*", "tool", "*"]]
    assert again.trajectory.model_dump(mode="json") == played.trajectory.model_dump(mode="json")


async def crash(task: AgentTask) -> str:
    await ask(task, task.messages)
    raise RuntimeError("a bug of the graph")


async def silence(task: AgentTask) -> str:
    return "I know the answer without asking."


async def helps_itself(task: AgentTask) -> str:
    name, arguments = RIGHT.calls[0]
    await task.call_tool(name, arguments, "call_0")
    return ""


async def another_model(task: AgentTask) -> str:
    await ask(task, task.messages, model="gpt-4.1")
    return ""


async def streaming(task: AgentTask) -> str:
    await ask(task, task.messages, stream=True)
    return ""


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (crash, "the agent scripted raised RuntimeError: a bug of the graph"),
        (silence, "the agent scripted ended without an answer of its model"),
        (helps_itself, "the agent scripted ended without an answer of its model"),
        (another_model, "the model of this rollout is 'scripted@None', not 'gpt-4.1'"),
        (streaming, "leave out `stream`"),
    ],
)
async def test_an_agent_that_fails_has_no_outcome(work: Callable[[AgentTask], Awaitable[str]], message: str) -> None:
    async with scripted_chat(in_turn([READ, RIGHT])) as model:
        played = await roll(model, work)
    assert played.failure is not None
    assert played.failure.kind is FailureKind.AGENT
    assert message in played.failure.message


async def test_a_crash_after_the_final_answer_changes_nothing() -> None:
    async def work(task: AgentTask) -> str:
        await answer(task, await ask(task, task.messages))
        raise RuntimeError("too late to matter")

    async with scripted_chat(in_turn([RIGHT])) as model:
        played = await roll(model, work)
    assert played.error is None
    assert played.outcome["finish"] == "answered"


async def sleeps(task: AgentTask) -> str:
    await asyncio.Event().wait()
    return ""


async def blocks(task: AgentTask) -> str:
    await asyncio.sleep(0)
    time.sleep(2)  # noqa: ASYNC251
    return ""


async def will_not_end(task: AgentTask) -> str:
    while True:
        try:
            await asyncio.sleep(2)
            return ""
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("work", [sleeps, blocks, will_not_end])
async def test_an_agent_that_hangs_is_left_behind(
    work: Callable[[AgentTask], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that blocks its thread, and one that does not take a cancellation."""
    monkeypatch.setattr(own_loop, "_GRACE_S", 0.01)
    async with scripted_chat(hang) as model:
        played = await roll(model, work, limits=RolloutLimits(timeout_s=0.05))
    assert played.failure is not None
    assert played.failure.kind == FailureKind.TIMEOUT
    assert played.outcome["finish"] == "open"


async def test_what_hangs_in_the_model_is_cancelled_with_the_rollout() -> None:
    async with scripted_chat(hang) as model:
        work = asyncio.create_task(roll(model, react))
        await until(lambda: model.answering)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: not model.answering)


async def test_a_refused_request_is_the_agents_to_mend() -> None:
    async def shorten(task: AgentTask) -> str:
        try:
            await ask(task, [*task.messages, {"role": "user", "content": "x" * 1000}])
        except Exception:
            return await react(task)
        raise AssertionError

    async with scripted_chat(in_turn([Reply(status=400), RIGHT])) as model:
        played = await roll(model, shorten)
    assert played.error is None
    assert played.outcome["finish"] == "answered"


FULL = Reply(status=400, body={"error": {"message": "Too much.", "code": "context_length_exceeded"}})


@pytest.mark.parametrize("replies", [[READ, FULL], [FULL]])
async def test_an_agent_whose_context_is_full_has_ended(agent: Any, replies: list[Reply]) -> None:
    async with scripted_chat(in_turn([*replies, *[FULL] * 9])) as model:
        played = await roll(model, react, agent=agent)
    assert played.error is None
    assert played.outcome["finish"] == "full_context"
    assert "fills the model's context" in played.outcome["detail"]


async def test_an_agent_that_gives_up_on_a_full_context_has_ended() -> None:
    async def gives_up(task: AgentTask) -> str:
        with suppress(Exception):
            await react(task)
        return "I give up."

    async with scripted_chat(in_turn([READ, FULL])) as model:
        played = await roll(model, gives_up)
    assert played.error is None
    assert played.outcome["finish"] == "full_context"


async def test_a_full_context_that_the_agent_mended_is_forgotten() -> None:
    async def shorten(task: AgentTask) -> str:
        with suppress(Exception):
            await ask(task, [*task.messages, {"role": "user", "content": "x" * 1000}])
        return await react(task)

    async with scripted_chat(in_turn([FULL, Reply(content="Done.")])) as model:
        played = await roll(model, shorten)
    assert played.error is None
    assert played.outcome["finish"] == "malformed"


async def test_a_model_that_is_away_is_no_failure_of_the_agent() -> None:
    """Whatever the agent makes of it."""

    async def swallows(task: AgentTask) -> str:
        try:
            return await react(task)
        except Exception:
            return "I do not care."

    async with scripted_chat(in_turn([READ, *[Reply(status=500)] * 9])) as model:
        played = await roll(model, swallows)
    assert played.failure is not None
    assert played.failure.kind is FailureKind.BACKEND_ERROR
    assert "as scripted" in played.failure.message


async def test_a_client_that_blocks_reaches_the_model_too() -> None:
    async def work(task: AgentTask) -> str:
        client = OpenAI(
            base_url=task.model.base_url, api_key=task.model.api_key, http_client=task.model.sync_http_client
        )
        messages: Any = list(task.messages)
        completion = client.chat.completions.create(
            model=task.model.model, messages=messages, temperature=0, seed=1, max_tokens=5
        )
        await answer(task, completion.choices[0].message.model_dump(exclude_none=True))
        return ""

    async with scripted_chat(in_turn([RIGHT])) as model:
        played = await roll(model, work, limits=RolloutLimits(temperature=0.7))
    assert played.error is None
    assert played.outcome["finish"] == "answered"
    [request] = model.requests
    assert request["temperature"] == 0.7
    assert request["max_tokens"] == 5
    assert request["seed"] != 1


class Purse:
    """A reservation of a number of requests; `most` has the upper bound of each."""

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.most: list[Usage] = []
        self.spent = Usage()

    async def room_for(self, most: Callable[[], Usage]) -> None:
        self.most.append(most())
        if len(self.most) > self.requests:
            raise BudgetReached("no more")

    def spend(self, used: Usage) -> None:
        self.spent += used


async def test_a_budget_that_is_used_up_ends_the_rollout_whatever_the_agent_does() -> None:
    async def swallows(task: AgentTask) -> str:
        try:
            return await react(task)
        except Exception:
            return "I do not care."

    purse = Purse(2)
    async with scripted_chat(in_turn([READ] * 9)) as model:
        with pytest.raises(BudgetReached, match="no more"):
            await roll(model, swallows, reservation=purse)
    assert len(model.requests) == 2
    assert purse.spent == Usage(100, 20)
    first, second, _ = purse.most
    assert first.prompt_tokens > second.prompt_tokens > 60  # what is known is counted in tokens, the rest in bytes


async def test_calls_at_the_same_time_are_reserved_for_together() -> None:
    async def parallel(task: AgentTask) -> str:
        await asyncio.gather(*(ask(task, task.messages) for _ in range(3)))
        return ""

    purse = Purse(3)
    release = asyncio.Event()

    async def script(request: Mapping[str, Any]) -> Reply:
        await release.wait()
        return Reply(content="x")

    async with scripted_chat(script) as model:
        work = asyncio.create_task(roll(model, parallel, reservation=purse))
        await until(lambda: len(purse.most) == 3)
        release.set()
        played = await work
    one, two, three = purse.most
    assert two == one + one
    assert three == one + one + one
    assert played.trajectory.metrics["turns"] == 3


async def test_an_endpoint_that_lost_its_memory_is_asked_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All calls of a rollout come from one process, as in the built-in loop."""
    monkeypatch.setattr("learnloop_service.training.rollout.rollout._LONGEST_PAUSE_S", 0.0)
    async with (
        scripted_chat(in_turn([READ, Reply(status=503), READ, RIGHT])) as model,
        open_chat(replace(model.endpoint(), remembers=True)) as chat,
    ):
        played = await rollout(ENVIRONMENT, SCENARIO, chat, id="r1", seed=7, agent=Scripted(react))
    assert played.error is None
    assert played.outcome["finish"] == "answered"
    assert len(model.requests) == 4
    assert played.trajectory.metrics["turns"] == 2
    assert model.requests[0]["seed"] == model.requests[2]["seed"]


async def test_its_calls_are_traced_below_its_rollout(agent: Any) -> None:
    """The agent runs on another thread."""
    noted = Noted()
    async with scripted_chat(in_turn([READ, RIGHT])) as model:
        with tracing(noted.tracer):
            await roll(model, react, agent=agent)
    assert set(noted.ended) == {
        "invoke_agent email_search",
        "invoke_agent email_search/chat",
        "invoke_agent email_search/execute_tool read_email",
        "invoke_agent email_search/execute_tool return_final_answer",
    }
