"""Answers a question: runs one rollout of the agent on the user's task and saves it as a trajectory."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.tenancy import RUN, require
from learnloop_service.app.datasets.references import pin
from learnloop_service.app.db.clock import database_time
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Reflection, Run, Trajectory
from learnloop_service.app.domain.stored_request import Choice, PromptReference
from learnloop_service.app.errors import BadGateway, InvalidRequest, NotFound
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.model_registry.resolver import ModelResolver, of_run
from learnloop_service.app.operations.named import ENVIRONMENT, built_environment, faults_at, rebuilding
from learnloop_service.app.releases.exposures import AnswerObservation, failure_recorded, record, record_in
from learnloop_service.app.releases.split import Exposure, Requester
from learnloop_service.app.runs.configuration import make_player
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.resume_point import begin_with
from learnloop_service.app.runs.stored_prompts import check_fits, pinned_prompt, read_stored
from learnloop_service.app.schemas.ask import AskOut, AskRequest, InvokeOut, InvokeParameters
from learnloop_service.app.schemas.run_request import EnvironmentChoice
from learnloop_service.app.service import HandlerResources
from learnloop_service.app.settings import Settings
from learnloop_service.app.worker.measures import count_rollouts
from learnloop_service.app.worker.save_iteration import rollout_row
from learnloop_service.environment.base import REPORTED_REWARD, Environment, Json, Scenario, UnknownScenario
from learnloop_service.environment.explained import why_no_success
from learnloop_service.environment.registry import traits
from learnloop_service.environment.trace import span, tracing
from learnloop_service.judges.reference import same_answer
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.protocol.asks_back import asks_back
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.rollout.chat import Chat, identity, message_of, open_chat
from learnloop_service.training.rollout.rollout import Player, RolloutLimits, rollout
from learnloop_service.training.types import FailureKind, Rollout, RunConfig

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

Tell = Callable[[Mapping[str, Json]], None]
"""Called with each message of the conversation as soon as it exists."""
_TIMEOUT_S = 120.0
_MAX_COMPLETION_TOKENS = RunConfig().max_completion_tokens


@dataclass(frozen=True, slots=True)
class _Agent:
    """The agent that answers."""

    endpoint: Endpoint
    step: int | None
    """Step of the checkpoint; None for a base model or the newest checkpoint."""
    run: Run | None
    environment: Choice
    prompt: PromptReference | None = None
    """Its stored prompt; None for the environment's texts."""
    state: dict[str, Json] | None = None
    """What the run's environment had learned by this checkpoint."""
    project: str | None = None
    """Project of the answer, if it does not belong to a run."""
    promoted_as: str | None = None
    """The promoted name that the question was sent to."""
    exposure: Exposure | None = None
    """What the user meets of a release; None without one."""

    @property
    def owner(self) -> str | None:
        """The project whose data it can use; None for any."""
        return self.project if self.run is None else self.run.model_project


@dataclass(slots=True)
class _ReportingChat:
    """A chat that reports its messages."""

    chat: Chat
    tell: Tell
    reported: Counter[str] = field(default_factory=Counter)
    """How often each message was reported. An agent that owns its loop can hold another conversation in between."""

    @property
    def model(self) -> str:
        return self.chat.model

    @property
    def remembers(self) -> bool:
        return self.chat.remembers

    @property
    def tells_token_ids(self) -> bool:
        return self.chat.tells_token_ids

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        occurrences = Counter[str]()
        for message in body["messages"]:
            occurrences[identity(message)] += 1
            if occurrences[identity(message)] > self.reported[identity(message)]:
                self._tell(message)
        completion = await self.chat.complete(body)
        self._tell(message_of(completion.choices[0]))
        return completion

    def _tell(self, message: dict[str, Json]) -> None:
        self.tell(message)
        self.reported[identity(message)] += 1


async def ask(
    service: HandlerResources,
    models: ModelResolver,
    request: AskRequest,
    caller: Caller,
    user_hash: str | None = None,
    tell: Tell | None = None,
) -> AskOut:
    """Answer a question of the user with that hash. Raises InvalidRequest, NotFound, Conflict, Unavailable or
    BadGateway."""
    if request.run_id is not None:
        agent = await _of_run(service, models, request.run_id, request, caller)
    else:
        agent = await _by_name(models, request, caller, Requester(user_hash))
    if "prompt" in request.model_fields_set:
        database, data_dir = service.database, service.settings.data_dir
        prompt = await pinned_prompt(database, data_dir, request.prompt, agent.owner, ("body", "prompt"))
        agent = replace(agent, prompt=prompt)
    return await _ask(service, agent, request, user_hash, tell)


async def _ask(
    service: HandlerResources,
    agent: _Agent,
    request: AskRequest,
    user_hash: str | None = None,
    tell: Tell | None = None,
) -> AskOut:
    run_id = agent.run.id if agent.run else None
    with (
        tracing(service.tracing.tracer),
        span("ask", run_id=run_id, model=agent.endpoint.model, step=agent.step) as traced,
    ):
        async with failure_recorded(service.database, agent.exposure):
            if tell is not None and agent.exposure is not None:
                await record(service.database, agent.exposure, None)  # messages leave before the answer
            answer = await _answer(service, agent, request, user_hash, tell)
        traced.output = answer.model_dump(mode="json")
    return answer


async def invoke(
    service: HandlerResources, models: ModelResolver, parameters: InvokeParameters, caller: Caller
) -> InvokeOut:
    """Ask the agent of the default environment that was promoted last; without one its newest trained agent, or the
    base model if nothing was trained yet.

    The environment gets a config in which the task can be done. If there is none, the reply says so: a caller that has
    just deployed this agent in place of another one may not have imported the data yet.
    """
    name, task = EnvironmentChoice().name, parameters.model_dump()
    promoted = await Promotions(service.database).latest_in(name, caller.project)
    run = promoted[1] if promoted else await service.queries.newest_trained(name, caller.project)
    fields = task | ({"run_id": run.id} if run else {"model": service.settings.art_base_model})
    run_config = run.stored_request.environment.config if run else {}
    try:
        fit = await asyncio.to_thread(traits(name).config_for, task, run_config, service.settings.data_dir)
    except UnknownScenario as error:
        return InvokeOut(question=parameters.question, answer=str(error), source_ids=[], success=False)
    if fit != run_config:
        fields["environment"] = {"name": name, "config": fit}
    if promoted is None:
        reply = await ask(service, models, AskRequest.model_validate(fields), caller)
    else:
        promotion, run = promoted
        request = AskRequest.model_validate({**fields, "checkpoint": promotion.step})
        agent = await _of_run(service, models, run.id, request, caller)
        asked_as = str(ModelName(promotion.project, promotion.name))
        reply = await _ask(service, replace(agent, promoted_as=asked_as, prompt=promotion.prompt), request)
    return InvokeOut.of(reply)


async def _of_run(
    service: HandlerResources, models: ModelResolver, run_id: str, request: AskRequest, caller: Caller
) -> _Agent:
    await require(service.database, caller, RUN, run_id)
    run = await service.store.get(run_id)
    resolved = of_run(run, request.checkpoint)
    endpoint = await models.endpoint(resolved)
    if request.environment is not None:  # without the learned state, which belongs to the run's own environment
        return _Agent(endpoint, resolved.step, run, _choice(request.environment), run.stored_request.prompt)
    stored = run.stored_request
    state = await _state(service.database, run.id, resolved.step)
    return _Agent(endpoint, resolved.step, run, stored.environment, stored.prompt, state)


async def _state(database: Database, run_id: str, step: int | None) -> dict[str, Json] | None:
    """Return the environment's state after the iteration that made the checkpoint, if it was saved."""
    query = (
        select(Reflection.state)
        .join(Checkpoint, (Checkpoint.run_id == Reflection.run_id) & (Checkpoint.iteration == Reflection.iteration))
        .where(Checkpoint.run_id == run_id, Checkpoint.step == step)
    )
    async with database() as tx:
        return (await tx.execute(query)).scalar_one_or_none()


async def _by_name(models: ModelResolver, request: AskRequest, caller: Caller, requester: Requester) -> _Agent:
    name = request.model if request.checkpoint is None else f"{request.model}@{request.checkpoint}"
    resolved = await models.resolve(caller, str(name), requester)
    environment = _choice(request.environment or EnvironmentChoice())
    async with failure_recorded(models.database, resolved.exposure):
        endpoint = await models.endpoint(resolved)
    return _Agent(
        endpoint,
        resolved.step,
        None,
        environment,
        prompt=resolved.prompt,
        project=caller.project,
        promoted_as=resolved.promoted_as,
        exposure=resolved.exposure,
    )


async def _answer(
    service: HandlerResources, agent: _Agent, request: AskRequest, user_hash: str | None, tell: Tell | None
) -> AskOut:
    with closing(await _environment(service.database, service.settings, agent)) as environment:
        begin_with(environment, agent.state)
        attempt = await _attempt(service, agent, environment, request, tell)
        scenario, answer = attempt.scenario, environment.answer(attempt.outcome)
        correct = _is_correct(scenario, answer)
        why = _why_no_success(environment, attempt, answer, correct)
    asked_by = {"user_hash": user_hash, "may_train": _may_train(service.settings, agent, request)}
    await _save(service.database, agent, attempt, asked_by)
    count_rollouts("ask", [attempt])
    if attempt.failure is not None:
        if attempt.failure.kind is FailureKind.MODEL_NOT_FOUND:
            raise NotFound(f"{_missing_model_message(agent, attempt.error)} (trajectory {attempt.id})")
        raise BadGateway(f"{agent.endpoint.model} gave no answer: {attempt.error} (trajectory {attempt.id})")
    sources = scenario.reference.get("source_ids")
    return AskOut(
        question=scenario.task.get("question"),
        answer=answer["answer"],
        source_ids=answer["source_ids"],
        success=answer["success"],
        expected=scenario.reference.get("answer"),
        correct=correct,
        sources_correct=set(answer["source_ids"]) == set(sources) if sources else None,
        why_no_success=why,
        note=answer.get("note"),
        email=answer.get("email"),
        trajectory_id=attempt.id,
        model=agent.endpoint.model,
        step=agent.step,
        release_id=None if agent.exposure is None else agent.exposure.split.release_id,
    )


async def _attempt(
    service: HandlerResources, agent: _Agent, environment: Environment, request: AskRequest, tell: Tell | None
) -> Rollout:
    """Return the agent's rollout of the task. Raises InvalidRequest, Conflict."""
    reference = await _reference(service.database, agent, request)
    scenario = replace(_scenario(environment, request), reference=reference)
    own_loop = await _own_loop(service.settings, agent)
    max_turns = agent.run.stored_request.config.max_turns if agent.run else None
    clock = await database_time(service.database)
    prompt = await read_stored(service.database, agent.owner, agent.prompt)
    if prompt is not None:
        await asyncio.to_thread(check_fits, environment, scenario, prompt, ("body", "prompt"))
    async with open_chat(agent.endpoint) as chat:
        return await rollout(
            environment,
            scenario,
            chat if tell is None else _ReportingChat(chat, tell),
            RolloutLimits(max_turns, _MAX_COMPLETION_TOKENS, _TIMEOUT_S, temperature=0.0),
            id=str(ULID()),
            seed=0,
            agent=own_loop,
            prompt=prompt,
            now=lambda: clock.now().timestamp(),
        )


def _is_correct(scenario: Scenario, answer: Mapping[str, Json]) -> bool | None:
    expected = scenario.reference.get("answer")
    return None if expected is None else same_answer(answer["answer"] or "", expected)


def _why_no_success(
    environment: Environment, attempt: Rollout, answer: Mapping[str, Json], correct: bool | None
) -> str | None:
    """Return the environment's clause about an answer that is not a success, as far as that is known without a
    judge."""
    if attempt.failure is not None:
        return None
    score = attempt.outcome.get(REPORTED_REWARD)
    if score is None and correct is not None:
        score = float(correct)
    succeeded = answer["success"] if score is None else environment.success(attempt.outcome, score)
    return None if succeeded else why_no_success(environment, attempt.scenario, attempt.outcome, score)


def _may_train(settings: Settings, agent: _Agent, request: AskRequest) -> bool:
    if request.train is not None:
        return request.train
    project = agent.run.model_project if agent.run else agent.project
    if project is None and agent.promoted_as is not None:
        project = ModelName.parse(agent.promoted_as).project
    return project in settings.train_on_projects


async def _reference(database: Database, agent: _Agent, request: AskRequest) -> Mapping[str, Json]:
    """Return the reference of the run's held-out scenario with this task; empty if it has none, or several."""
    if agent.run is None:
        return {}
    reference = Trajectory.scenario["reference"]
    query = (
        select(reference)
        .where(Trajectory.run_id == agent.run.id, Trajectory.iteration == 0, Trajectory.kind == "evaluation")
        .where(Trajectory.scenario["task"].contains(request.task()))
        .where(func.jsonb_typeof(reference["answer"]) == "string")
        .distinct()
        .limit(2)
    )
    async with database() as tx:
        references = (await tx.execute(query)).scalars().all()
    return references[0] if len(references) == 1 else {}


def _choice(choice: EnvironmentChoice) -> Choice:
    return Choice(name=choice.name, config=choice.config)


def _missing_model_message(agent: _Agent, error: str | None) -> str:
    """Explain why the model's server does not know the model."""
    newest = agent.run.step if agent.run else None
    if agent.run is not None and agent.step is not None and newest is not None and agent.step > newest:
        return f"Run {agent.run.id} has no checkpoint {agent.step}; the newest one is {newest}."
    return (
        f"The files of {agent.endpoint.model} are gone or damaged: {error}. Put back a copy of them, or ask another "
        "checkpoint of the run or another model."
    )


async def _environment(database: Database, settings: Settings, agent: _Agent) -> Environment:
    project, data_dir = agent.owner, settings.data_dir
    with faults_at(ENVIRONMENT):
        choice = await pin(database, data_dir, _config_for_question(agent.environment), project)
        access = EnvironmentAccess(settings)
        return await built_environment(database, data_dir, _config_for_question(choice), project, access)


async def _own_loop(settings: Settings, agent: _Agent) -> Player | None:
    """Return the run's or the environment's agent if it owns its loop. Raises Conflict."""
    run = agent.run
    chosen = run.stored_request.agent if run else None
    with rebuilding(f"The agent of run {run.id if run else None} cannot be made again"):
        return await asyncio.to_thread(make_player, chosen, agent.environment, settings.agent_modules)


def _config_for_question(environment: Choice) -> Choice:
    """Return the environment without the training data that a user's own task does not need."""
    unneeded = traits(environment.name).asked_without
    needed = {key: value for key, value in environment.config.items() if key not in unneeded}
    return Choice(name=environment.name, config=needed)


def _scenario(environment: Environment, request: AskRequest) -> Scenario:
    if (wrong := request.wrong_field(environment.name)) is not None:
        raise InvalidRequest(("body", wrong[0]), wrong[1])
    try:
        return environment.ask(request.task())
    except ValueError as error:
        raise InvalidRequest(("body",) if request.input is None else ("body", "input"), str(error)) from error


async def _save(database: Database, agent: _Agent, attempt: Rollout, asked_by: Mapping[str, Any]) -> None:
    exposure = agent.exposure
    row: dict[str, Any] = {
        **rollout_row(attempt),
        **asked_by,
        **({} if exposure is None else exposure.columns()),
        "run_id": agent.run.id if agent.run else None,
        "project": agent.project,
        "asked_as": agent.promoted_as,
        "kind": "ask",
        "mode": "greedy",
        "model": agent.endpoint.model,
        "step": agent.step,
        "prompt_sha256": agent.prompt and agent.prompt.sha256,
        "score_parts": {},
        "reward_parts": {},
    }
    async with database.begin() as tx:
        await tx.execute(insert(Trajectory), [row])
        if exposure is not None:
            await record_in(tx, exposure, _observed(attempt))


def _observed(attempt: Rollout) -> AnswerObservation:
    last = attempt.trajectory.messages_and_choices[-1:]
    return AnswerObservation(
        error=attempt.failure is not None,
        malformed=attempt.outcome.get("finish") == "malformed",
        seconds=attempt.seconds,
        completion_tokens=int(attempt.trajectory.metrics.get("completion_tokens", 0)),
        asks_back=asks_back({"output": [message_of(reply) for reply in last if not isinstance(reply, dict)]}),
    )
