"""Answers a question: one rollout of the agent on the user's own task, kept as a trajectory."""

import asyncio
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert
from ulid import ULID

import environment.registry
from app.engine_process import EngineUnavailable
from app.errors import BadGateway, Conflict, InvalidRequest, NotFound, Unavailable
from app.models import Run, Trajectory
from app.runs.configuration import model_spec
from app.runs.record import rollout_row
from app.schemas import AskOut, AskRequest, EnvironmentChoice, InvokeParameters
from app.service import Service
from environment.base import Environment, Scenario
from environment.registry import UnknownEnvironment
from training.backends.base import BackendUnavailable, Endpoint
from training.rollouts import open_chat, rollout
from training.types import Rollout, RunConfig

_TIMEOUT_S = 120.0
_MAX_COMPLETION_TOKENS = RunConfig().max_completion_tokens


@dataclass(frozen=True, slots=True)
class _Agent:
    """Who answers."""

    endpoint: Endpoint
    step: int | None
    """None: a base model, or whatever is newest."""
    run: Run | None
    environment: EnvironmentChoice


async def ask(service: Service, request: AskRequest) -> AskOut:
    """Raises InvalidRequest, NotFound, Conflict, Unavailable or BadGateway."""
    try:
        agent = await (_of_run(service, request) if request.run_id else _by_name(service, request))
    except (EngineUnavailable, BackendUnavailable) as error:
        raise Unavailable(str(error)) from error
    return await _answer(service, agent, request)


async def invoke(service: Service, parameters: InvokeParameters) -> AskOut:
    """Ask the newest trained agent of the default environment; the base model if nothing was trained yet."""
    newest = await service.queries.newest_trained(EnvironmentChoice().name)
    who = {"run_id": newest.id} if newest else {"model": service.settings.art_base_model}
    return await ask(service, AskRequest.model_validate(parameters.model_dump() | who))


async def _of_run(service: Service, request: AskRequest) -> _Agent:
    run = await service.store.get(request.run_id or "")
    step = run.best_step if request.checkpoint is None else request.checkpoint
    if step is None:
        raise Conflict(f"run {run.id} has no checkpoint yet; ask when its baseline is done")
    backend = await service.connect(run.backend)
    try:
        policy = await backend.register(model_spec(run))
        newest = await policy.step()
        if step > newest:
            raise NotFound(f"run {run.id} has no checkpoint {step}; its newest is {newest}")
        endpoint = policy.endpoint(step)
    finally:
        await backend.close()
    chosen = request.environment or EnvironmentChoice(**run.request["environment"])
    return _Agent(endpoint, step, run, chosen)


async def _by_name(service: Service, request: AskRequest) -> _Agent:
    """A model that the engine knows: a base model, or PROJECT/NAME with a step."""
    assert request.model is not None
    address = await service.engine.address()
    name = request.model if request.checkpoint is None else f"{request.model}@{request.checkpoint}"
    endpoint = Endpoint(f"{address.url}/v1", address.key, name)
    return _Agent(endpoint, request.checkpoint, None, request.environment or EnvironmentChoice())


async def _answer(service: Service, agent: _Agent, request: AskRequest) -> AskOut:
    made = await asyncio.to_thread(_environment, service, agent.environment)
    try:
        scenario = _scenario(made, request)
        async with open_chat(agent.endpoint) as chat:
            attempt = await rollout(
                made,
                scenario,
                chat,
                id=str(ULID()),
                seed=0,
                max_turns=agent.run.request["max_turns"] if agent.run else None,
                temperature=0.0,
                max_completion_tokens=_MAX_COMPLETION_TOKENS,
                timeout_s=_TIMEOUT_S,
            )
        answer = made.answer(attempt.outcome)
    finally:
        made.close()
    await _save(service, agent, attempt)
    if attempt.error is not None:
        # A rollout's error begins with the exception's name; the OpenAI client's for a 404 is this one.
        kind = NotFound if attempt.error.startswith("NotFoundError") else BadGateway
        raise kind(f"{agent.endpoint.model} gave no answer: {attempt.error} (trajectory {attempt.id})")
    return AskOut(
        question=scenario.task["question"],
        answer=answer["answer"],
        source_ids=answer["source_ids"],
        success=answer["success"],
        trajectory_id=attempt.id,
        model=agent.endpoint.model,
        step=agent.step,
    )


def _environment(service: Service, choice: EnvironmentChoice) -> Environment:
    try:
        return environment.registry.build(choice.name, choice.config, service.settings.data_dir)
    except UnknownEnvironment as error:
        raise InvalidRequest(("body", "environment", "name"), str(error)) from error
    except ValueError as error:
        raise InvalidRequest(("body", "environment", "config"), str(error)) from error


def _scenario(made: Environment, request: AskRequest) -> Scenario:
    fields = request.model_dump(include={"question", "inbox_address", "query_date"}, exclude_none=True)
    try:
        return made.ask(fields)
    except ValueError as error:
        raise InvalidRequest(("body",), str(error)) from error


async def _save(service: Service, agent: _Agent, attempt: Rollout) -> None:
    row: dict[str, Any] = rollout_row(attempt) | {
        "run_id": agent.run.id if agent.run else None,
        "kind": "ask",
        "mode": "greedy",
        "model": agent.endpoint.model,
        "step": agent.step,
        "score_parts": {},
        "reward_parts": {},
    }
    async with service.sessions.begin() as session:
        await session.execute(insert(Trajectory), [row])
