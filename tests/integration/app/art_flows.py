"""The flows of ART's published examples, as scripts that know ART and nothing of ours but a URL, a key and a project.

Each is written after one of them: tic-tac-toe, 2048, temporal clue and ART-E of github.com/OpenPipe/ART, and what its
documentation shows of LangGraph and auto_trajectory. They call the model exactly as these do, none asks for
log-probabilities; the games themselves are not played, and rewards are made up.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import art
import litellm
from art.auto_trajectory import capture_auto_trajectory
from art.langgraph import init_chat_model, wrap_rollout
from art.serverless.backend import ServerlessBackend
from art.utils.litellm import convert_litellm_choice_to_openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, convert_to_openai_messages
from langchain_openai import ChatOpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "search_inbox",
        "description": "Find mail",
        "parameters": {
            "type": "object",
            "properties": {"keywords": {"type": "array", "items": {"type": "string"}}},
            "required": ["keywords"],
        },
    },
}
SYSTEM: Any = {"role": "system", "content": "Answer."}
QUESTION: Any = {"role": "user", "content": "When is the kickoff?"}
TURNS = 2
Rollout = Callable[[Any, int], Awaitable[art.Trajectory]]
retry: Callable[[Rollout], Rollout] = cast(Any, art).retry()  # mypy may take it for the module of that name


@retry
async def game(model: Any, scenario: int) -> art.Trajectory:
    """tic-tac-toe: the trajectory grows by boards and choices, and is what the model is asked with."""
    trajectory = art.Trajectory(messages_and_choices=[SYSTEM], reward=0)
    for move in range(TURNS):
        trajectory.messages_and_choices.append({"role": "user", "content": f"Game {scenario}, move {move}"})
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_completion_tokens=8
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        _count(trajectory, completion.usage.completion_tokens)
    return trajectory


@retry
async def game_2048(model: Any, scenario: int) -> art.Trajectory:
    """2048: the same, but the model is asked for by its bare name."""
    trajectory = art.Trajectory(messages_and_choices=[SYSTEM], reward=0)
    for move in range(TURNS):
        trajectory.messages_and_choices.append({"role": "user", "content": f"Board {scenario}.{move}"})
        completion = await model.openai_client().chat.completions.create(
            max_completion_tokens=8, messages=trajectory.messages(), model=model.name
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        _count(trajectory, completion.usage.completion_tokens)
    return trajectory


async def clue(model: Any, scenario: int) -> art.Trajectory:
    """temporal clue: one answer, however long."""
    messages: Any = [{"role": "user", "content": f"Who was where, and when? Puzzle {scenario}"}]
    completion = await model.openai_client().chat.completions.create(messages=messages, model=model.name)
    trajectory = art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=0)
    return _count(trajectory, completion.usage.completion_tokens)


async def art_e(model: Any, scenario: int) -> art.Trajectory:
    """ART-E: litellm's completions, converted; tools; the first call of a reply only."""
    trajectory = art.Trajectory(messages_and_choices=[SYSTEM, QUESTION], tools=[TOOL], reward=0)
    for _ in range(TURNS):
        response: Any = await litellm.acompletion(
            model=f"hosted_vllm/{model.name}",
            base_url=model.inference_base_url,
            messages=trajectory.messages(),
            caching=False,
            api_key=model.inference_api_key,
            max_completion_tokens=60,
            tools=[TOOL],
            tool_choice=None,
        )
        _count(trajectory, response.usage.completion_tokens)
        choice = response.choices[0]
        if choice.message.tool_calls is not None and len(choice.message.tool_calls) > 1:
            choice.message.tool_calls = choice.message.tool_calls[:1]
        trajectory.messages_and_choices.append(convert_litellm_choice_to_openai(choice))
        if not choice.message.tool_calls:
            break
        found: Any = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": '["m41"]'}
        trajectory.messages_and_choices.append(found)
    return trajectory.finish()


async def graph(model: Any, scenario: int) -> art.Trajectory:
    """LangGraph: `wrap_rollout` makes the trajectory from what `init_chat_model` logged."""

    async def agent() -> art.Trajectory:
        trajectory = art.Trajectory(messages_and_choices=[], reward=0)
        chat = init_chat_model().bind_tools([TOOL])
        messages: list[Any] = [SystemMessage(SYSTEM["content"]), HumanMessage(QUESTION["content"])]
        for _ in range(TURNS):
            said = await chat.ainvoke(messages)
            _count(trajectory, said.usage_metadata["output_tokens"])
            messages.append(said)
            if not said.tool_calls:
                break
            messages.append(ToolMessage('["m41"]', tool_call_id=said.tool_calls[0]["id"]))
        return trajectory

    wrap: Any = wrap_rollout
    trajectory: art.Trajectory = await wrap(model, agent)()
    return trajectory


async def captured(model: Any, scenario: int) -> art.Trajectory:
    """auto_trajectory: what the client sends and receives is the trajectory, streamed or not."""

    sampled = 0

    async def agent() -> None:
        nonlocal sampled
        messages: Any = [SYSTEM, {"role": "user", "content": f"Question {scenario}"}]
        asked: Any = {"model": model.get_inference_name(), "messages": messages, "max_completion_tokens": 8}
        first = await model.openai_client().chat.completions.create(**asked)
        sampled += first.usage.completion_tokens
        messages += [{"role": "assistant", "content": first.choices[0].message.content}, QUESTION]
        more: Any = {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await model.openai_client().chat.completions.create(**asked, **more):
            sampled += chunk.usage.completion_tokens if chunk.usage else 0

    trajectory = await capture_auto_trajectory(agent())
    return _count(trajectory, sampled)


async def rebuilt(model: Any, scenario: int) -> art.Trajectory:
    """A framework that keeps nothing of a reply but its content and its calls."""
    chat = ChatOpenAI(
        base_url=model.inference_base_url, api_key=model.inference_api_key, model=model.get_inference_name()
    ).bind_tools([TOOL])
    messages: list[Any] = [SystemMessage(SYSTEM["content"]), HumanMessage(QUESTION["content"])]
    sampled = 0
    for _ in range(TURNS):
        said: Any = await chat.ainvoke(messages, max_completion_tokens=60)
        sampled += said.usage_metadata["output_tokens"]
        messages.append(AIMessage(said.content, tool_calls=said.tool_calls, name="agent"))
        if not said.tool_calls:
            break
        messages.append(ToolMessage('["m41"]', tool_call_id=said.tool_calls[0]["id"]))
    plain: Any = convert_to_openai_messages(messages)
    return _count(art.Trajectory(messages_and_choices=plain, tools=[TOOL], reward=0), sampled)


def _count(trajectory: art.Trajectory, tokens: int) -> art.Trajectory:
    """Note that so many tokens of it were sampled."""
    trajectory.metrics["sampled"] = trajectory.metrics.get("sampled", 0) + tokens
    return trajectory


FLOWS: dict[str, Rollout] = {
    "tic-tac-toe": game,
    "2048": game_2048,
    "temporal-clue": clue,
    "art-e": art_e,
    "langgraph": graph,
    "auto-trajectory": captured,
    "rebuilt": rebuilt,
}


async def train(backend: ServerlessBackend, rollout: Rollout, name: str) -> Any:
    """Gather, train and log as the examples do; what came out."""
    project = os.environ["TRAINING_PROJECT"]
    model: Any = art.TrainableModel(name=name, project=project, base_model="tiny", base_path=sys.argv[1])
    await model.register(backend)
    before = await model.get_step()

    async def rewarded(scenario: int, reward: int) -> art.Trajectory:
        trajectory = await rollout(model, scenario)
        trajectory.reward = float(reward)
        return trajectory

    waiting: Any = (art.TrajectoryGroup(rewarded(scenario, reward) for reward in range(3)) for scenario in range(2))
    groups = await art.gather_trajectory_groups(waiting, pbar_desc=name)
    result = await backend.train(model, groups, learning_rate=1e-3)
    await model.log(groups, split="train", step=result.step, metrics=result.metrics)
    await model.delete_checkpoints()
    sampled = sum(each.metrics["sampled"] for group in groups for each in group.trajectories if each.reward != 1)
    return {"before": before, "after": await model.get_step(), "sampled": sampled, "metrics": result.metrics}


async def main() -> None:
    """All flows at the same time, each with a model of its own; some may be there already, taught to call TOOL."""
    backend = ServerlessBackend(base_url=os.environ["TRAINING_URL"], api_key=os.environ["TRAINING_KEY"])
    outcomes = await asyncio.gather(
        *(train(backend, rollout, name) for name, rollout in FLOWS.items()), return_exceptions=True
    )
    for flow, outcome in zip(FLOWS, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise RuntimeError(flow) from outcome
    print("RESULT", json.dumps(dict(zip(FLOWS, outcomes, strict=True))))  # noqa: T201
    await backend.close()


asyncio.run(main())
