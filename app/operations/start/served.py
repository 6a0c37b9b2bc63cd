"""Prepares a learn-loop on served answers: it starts a new model from the checkpoint that a promoted name has, and its
answers are frozen."""

import asyncio
from dataclasses import replace
from datetime import datetime
from statistics import fmean
from typing import Any

from ulid import ULID

from learnloop_service.app.agent_sessions.consented import (
    SessionFilter,
    consented_pool,
    draw_scenarios,
    read_filter,
    stored_scenarios,
)
from learnloop_service.app.agent_sessions.served import AnswerSource, FrozenAnswers, freeze
from learnloop_service.app.datasets import documents
from learnloop_service.app.errors import InvalidRequest, Location
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.operations.start.base_model import Root, root_of
from learnloop_service.app.operations.start.run_plan import generated_name, plan_of
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.own_agent.environment import NAME as OWN_AGENT
from learnloop_service.training.backends.registry import engine_backend, is_on_engine
from learnloop_service.training.loop.served_answers import ANSWER_KL, OPTIONS
from learnloop_service.training.protocol.model_name import ModelName

_WHERE: Location = ("body", "source", "sessions")
_ITERATIONS = 16
"""Many small steps gain more than a few of the same size. They do not add up by their square roots, so a run stops when
answers have moved far (`MOST_MOVED`)."""


def answer_source(request: LearnLoopRequest) -> AnswerSource | None:
    """Return the served answers that the learn-loop is to learn from; None for any other. Raises InvalidRequest."""
    sessions = request.source.sessions if request.source else {}
    return read_filter(AnswerSource, sessions, _WHERE) if sessions.get("train_on") == "answers" else None


async def with_answers(
    service: HandlerResources, request: LearnLoopRequest
) -> tuple[LearnLoopRequest, FrozenAnswers | None]:
    """Return the request; if it is to learn from served answers with what follows from them, and these as they are now.
    Raises InvalidRequest and TooFewAnswers."""
    if (source := answer_source(request)) is None:
        return request, None
    request = request.model_copy(update={"source": None})
    plan = plan_of(request, service.settings, "")
    if not is_on_engine(plan.backend):
        raise InvalidRequest(("body", "backend"), f"Served answers are learned from only by {engine_backend()}.")
    model_name, project = request.model.name or f"answers-{ULID()}".lower(), plan.model.project
    if await RunQueries(service.database).first_model(plan.backend, project, model_name) is not None:
        raise InvalidRequest(("body", "model", "name"), "Answers are learned by a new model, and this one exists.")
    start = await _start(service, request, project, source)

    async def root(checkpoint: str) -> Root:
        model = {"name": generated_name(plan.run_id), "base_model": checkpoint, "tuning": None}
        return await root_of(service, replace(plan, model=plan.model.model_copy(update=model)))

    base, iterations = await root(start["base_model"]), request.iterations or _ITERATIONS

    async def has_base(checkpoint: str) -> bool:
        return (await root(checkpoint)).base_model == base.base_model

    answers = await freeze(service.database, project, source, request.seed, iterations, has_base)
    answers.require_enough()
    max_kl = ANSWER_KL / iterations / fmean(row["tokens"] for row in answers.rows)
    options = {**OPTIONS, "max_kl": max_kl, **plan.train_options}
    changes: dict[str, Any] = {
        "model": request.model.model_copy(update={"base_model": start["base_model"], "name": model_name}),
        "prompt": start["prompt"],
        "warm_start": None,
        "iterations": 0,
        "warmup_iterations": request.warmup_iterations or 1,
        "train_options": request.train_options.model_copy(update=options),
        "checkpoints": None,  # the first one is what answers are compared with, and perhaps the best
    }
    changes |= await _held_out(service, request, project, source, answers)
    document = await asyncio.to_thread(documents.document, project, "served", answers.rows)
    facts = {**answers.facts, **document.reference, "start": start["base_model"], "iterations": iterations}
    return request.model_copy(update=changes), answers._replace(facts=facts, document=document)


async def _start(
    service: HandlerResources, request: LearnLoopRequest, project: str, source: AnswerSource
) -> dict[str, Any]:
    """Return the checkpoint to start from, that of the promoted name unless the request has one, and its prompt."""
    if (base_model := request.model.base_model) is not None:
        return {"base_model": base_model, "prompt": request.prompt}
    name = source.model.removeprefix(f"{project}/")
    if (champion := await Promotions(service.database).current(project, name)) is None:
        raise InvalidRequest((*_WHERE, "model"), f"Nothing is promoted to {project}/{name}, to start from.")
    prompt = request.prompt if "prompt" in request.model_fields_set else champion.prompt_sha256
    return {"base_model": str(ModelName(champion.project, champion.model_name, champion.step)), "prompt": prompt}


async def _held_out(
    service: HandlerResources, request: LearnLoopRequest, project: str, source: AnswerSource, answers: FrozenAnswers
) -> dict[str, Any]:
    """Return the changes by which held-out tasks are attempted: those that users asked if an agent has no other ones,
    and none without an environment."""
    environment = request.environment
    if "environment" not in request.model_fields_set:
        return {"evaluation": request.evaluation.model_copy(update={"scenarios": 0, "test_scenarios": 0})}
    if environment.name != OWN_AGENT or "scenarios" in environment.config:
        return {}
    which, until = SessionFilter(model=source.model), datetime.fromisoformat(answers.facts["frozen_at"])
    pool = await consented_pool(service.database, project, which, None, until, None)
    drawn = await draw_scenarios(service.database, pool, which, f"answers:{request.seed}")
    config = {**environment.config, "scenarios": await stored_scenarios(service.database, project, drawn)}
    return {"environment": environment.model_copy(update={"config": config})}
