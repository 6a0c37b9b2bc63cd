"""Agents as teams write them, for the environment `agent`: named by module path, or behind HTTP."""

import json
from collections.abc import Mapping

from openai import AsyncOpenAI, BadRequestError

from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.agents.base import AgentModel


async def _say(model: AgentModel, *messages: Json) -> str:
    client = AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, http_client=model.http_client, max_retries=0)
    reply = await client.chat.completions.create(model=model.model, messages=list(messages))
    return reply.choices[0].message.content or ""


async def answering(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Return what the model says, for a judge."""
    return await _say(model, {"role": "user", "content": task["question"]})


async def scoring(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Score itself. If the model says `refuse` it gives up, and if it says `lie` it reports an invalid reward."""
    reply = await _say(model, {"role": "user", "content": task["question"]})
    return {"refuse": {"reward": None, "reason": "no network"}, "lie": {"reward": float("nan")}}.get(
        reply, {"parts": {"right": float(reply == "yes"), "length": -0.25}}
    )


async def endless(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Ask until it is refused, and report the number of turns as the reward."""
    turns = 0
    try:
        while True:
            await _say(model, {"role": "user", "content": f"{turns}"})
            turns += 1
    except BadRequestError:
        return {"reward": turns}


def blocking(task: Mapping[str, Json], model: AgentModel) -> Json:
    """An agent that is not an async function."""


async def replaying(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Ask what a user asked. The model is right if it says `yes`."""
    return {"reward": float(await _say(model, *task["messages"]) == "yes")}


async def parsing(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Score what the model says as JSON, and raise if it is none."""
    return {"reward": json.loads(await _say(model, {"role": "user", "content": task["question"]}))["reward"]}


async def prompted(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Bring the prompt of its rollout, or a text of its own. The model is right if it says `yes`."""
    system = model.prompt.get("system", "You are terse.")
    said = await _say(model, {"role": "system", "content": system}, {"role": "user", "content": task["question"]})
    return {"reward": float(said == "yes")}
