"""Starts an evaluation: checks the request as far as possible, resolves names permanently, and saves it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.tenancy import RUN, require
from learnloop_service.app.backends import Connect, connected
from learnloop_service.app.claims.day_budget import usd_of_day
from learnloop_service.app.datasets.documents import UnknownDocument
from learnloop_service.app.db.tables import EvaluationJob, Run
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.stored_evaluation import (
    Comparison,
    Contestant,
    Evaluation,
    Gate,
    GateEvaluation,
    StoredEvaluation,
)
from learnloop_service.app.domain.stored_request import Choice, StoredBudget
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.events.log import append_to_evaluation
from learnloop_service.app.listed_models import ListedModels, NotedModels
from learnloop_service.app.model_registry.resolver import ModelResolver, ResolvedModel
from learnloop_service.app.operations.named import (
    ENVIRONMENT,
    built_environment,
    built_judge,
    check_agents,
    faults_at,
    pinned,
)
from learnloop_service.app.operations.start.run_plan import judge_with_defaults
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.configuration import is_replaced, model_spec
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.runs.stored_prompts import check_fits, pinned_prompt, read_stored
from learnloop_service.app.schemas.evaluations import EvaluationRequest, ModelToEvaluate
from learnloop_service.app.schemas.run_request import EnvironmentChoice
from learnloop_service.app.settings import Settings
from learnloop_service.environment.base import Split, Synthetic
from learnloop_service.environment.scenario_order import different
from learnloop_service.judges.base import Judge, JudgeServices, Models, UnknownModel
from learnloop_service.training.backends.registry import engine_backend, is_on_engine
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.gate import GateRule
from learnloop_service.training.types import HELD_OUT_SEED, RunConfig

_DEFAULTS = RunConfig()
SaveReply = Callable[[AsyncSession, "StartedEvaluation"], Awaitable[None]]
"""Saves the reply to the request, in the transaction that creates the evaluation."""


@dataclass(frozen=True, slots=True)
class StartedEvaluation:
    """An evaluation that was queued, and warnings about it."""

    job: EvaluationJob
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class Basis:
    """What an evaluation takes over from a run, or from an earlier evaluation, where its request says nothing."""

    environment: Choice
    judge: Choice
    agent: Choice | None
    seed: int
    max_turns: int | None
    max_completion_tokens: int

    @classmethod
    def of_run(cls, run: Run, split: Split = "test") -> "Basis":
        """Return what an evaluation takes over from a run. Its seed draws the run's own scenarios of the split."""
        request, config = run.stored_request, run.stored_request.config
        limits = (config.max_turns, config.max_completion_tokens)
        seed = config.seed if split == "train" else config.held_out_seed
        return cls(request.environment, request.judge, request.agent, seed, *limits)

    @classmethod
    def of_evaluation(cls, evaluation: StoredEvaluation) -> "Basis":
        """Return what an evaluation takes over from an earlier one."""
        return cls(
            evaluation.environment,
            evaluation.judge,
            evaluation.agent,
            evaluation.seed,
            evaluation.max_turns,
            evaluation.max_completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class EvaluationStarter:
    """Starts evaluations."""

    resources: Resources
    runs: RunStore
    models: ModelResolver
    wake_worker: Callable[[], None]

    async def start(
        self,
        id: str,
        request: EvaluationRequest,
        caller: Caller,
        save_reply: SaveReply,
        kind: type[Comparison] = Comparison,
        **fields: Any,
    ) -> StartedEvaluation:
        """Queue a comparison, or a trial. `kind` and `fields` are as in `queue`.

        Raises InvalidRequest, NotFound, Conflict or Unavailable.
        """
        run = await self._run(request, caller)
        project = caller.project or (run.model_project if run else self.resources.settings.art_project)
        basis = Basis.of_run(run, request.split) if run else None
        if not request.models:
            assert run is not None
            base = ModelToEvaluate(model=run.base_model, label="base")
            models = [base, ModelToEvaluate(model=run.id, label="trained")]
            request = request.model_copy(update={"models": models})
        if request.gate is not None and kind is Comparison:
            kind, fields = GateEvaluation, {**fields, "gate": _gate(request)}
        return await self.queue(id, request, caller, save_reply, basis, project, kind, **fields)

    async def queue(
        self,
        id: str,
        request: EvaluationRequest,
        caller: Caller,
        save_reply: SaveReply,
        basis: Basis | None,
        project: str,
        kind: type[Evaluation],
        built: NotedModels | None = None,
        recorded: Mapping[int, str] | None = None,
        **fields: Any,
    ) -> StartedEvaluation:
        """Queue an evaluation of that kind. `fields` are the fields that only this kind has, and those with values that
        no request can have. `built` has the models that the judge asked for when it was built; None if it was not yet.
        `recorded` has, by the numbers of models, earlier evaluations whose rollouts serve again where they hold.

        Raises InvalidRequest, NotFound, Conflict or Unavailable.
        """
        evaluation, engine, warnings = await self.prepared(
            request, caller, basis, project, kind, built, recorded, **fields
        )
        job = EvaluationJob(
            id=id,
            project=project,
            status=EvaluationStatus.QUEUED,
            request=evaluation.stored(),
            engine=engine,
            total=evaluation.slots,
            done=0,
            judge={},
            started_by=caller.started_by,
            **evaluation.listed_by,
        )
        started = StartedEvaluation(job, warnings)
        async with self.resources.database.begin() as tx:
            tx.add(job)
            await tx.flush()
            created = _created(evaluation)
            await append_to_evaluation(tx, id, EventType.EVALUATION_CREATED, caller.actor, created)
            await tx.refresh(job)
            await save_reply(tx, started)
        self.wake_worker()
        return started

    async def prepared(
        self,
        request: EvaluationRequest,
        caller: Caller,
        basis: Basis | None,
        project: str,
        kind: type[Evaluation] = Comparison,
        built: NotedModels | None = None,
        recorded: Mapping[int, str] | None = None,
        **fields: Any,
    ) -> tuple[Evaluation, str | None, Sequence[str]]:
        """Return an evaluation as `queue` would store it, the engine that has its models, and warnings.

        Raises InvalidRequest, NotFound, Conflict or Unavailable.
        """
        noted = built or NotedModels(ListedModels(self.resources.settings))
        contestants, engine = await self._contestants(request, caller, noted, project, recorded or {})
        stored = await self._stored(request, basis, project, contestants, None if built else noted)
        of_day = await usd_of_day(self.resources.database, project, caller.started_by)
        noted.check_budget((request.budget and request.budget.max_usd) or of_day)
        return kind.model_validate({**dict(stored), **fields}), engine, noted.warnings

    async def _run(self, request: EvaluationRequest, caller: Caller) -> Run | None:
        if request.run_id is None:
            return None
        await require(self.resources.database, caller, RUN, request.run_id)
        return await self.runs.get(request.run_id)

    async def _contestants(
        self,
        request: EvaluationRequest,
        caller: Caller,
        listed: Models,
        project: str,
        recorded: Mapping[int, str],
    ) -> tuple[tuple[Contestant, ...], str | None]:
        """Return the models under permanent names, and the engine that has them (None for any or no engine)."""
        contestants, engines = [], []
        for index, model in enumerate(request.models):
            contestant, engine = await self._resolve_model(index, model, caller, listed)
            contestant = await self._prompted(index, request, contestant, project)
            contestants.append(contestant.model_copy(update={"recorded": recorded.get(index)}))
            engines.append(engine)
        return _require_unique_labels(contestants), _one_engine(engines)

    async def _resolve_model(
        self, index: int, model: ModelToEvaluate, caller: Caller, listed: Models
    ) -> tuple[Contestant, str | None]:
        """Return the model under a permanent name, and the engine that has it (None for any or no engine)."""
        if model.prompted is not None:
            try:
                listed.model(model.prompted)
            except UnknownModel as error:
                raise InvalidRequest(("body", "models", index, "prompted"), str(error)) from error
            return Contestant(label=model.label or model.prompted, kind="prompted", model=model.prompted), None
        name = model.model or self.resources.settings.art_base_model
        resolved = await self._fix_step(await self.models.resolve(caller, name))
        await self._check_checkpoint(index, resolved)
        run, backend, spec = resolved.run, engine_backend(), None
        if run is not None and not is_on_engine(resolved.backend):
            named, backend = model_spec(run), resolved.backend
            spec = {"project": named.project, "name": named.name, "base_model": named.base_model}
        contestant = Contestant(
            label=model.label or resolved.name,
            kind="trained",
            model=resolved.name,
            step=resolved.step,
            backend=backend,
            spec=spec,
            prompt=resolved.prompt,
        )
        return contestant, run.engine if run is not None and spec is None else None

    async def _prompted(
        self, index: int, request: EvaluationRequest, contestant: Contestant, project: str
    ) -> Contestant:
        """Return the model with the prompt that was asked for; without one, it keeps that of its promoted name or
        run. Raises InvalidRequest."""
        model = request.models[index]
        if "prompt" not in model.model_fields_set:
            return contestant
        database, data_dir = self.resources.database, self.resources.settings.data_dir
        where = ("body", "models", index, "prompt")
        prompt = await pinned_prompt(database, data_dir, model.prompt, project, where)
        label = model.label or f"{contestant.label}{'' if prompt is None else f' with {prompt}'}"
        return contestant.model_copy(update={"prompt": prompt, "label": label})

    async def _fix_step(self, model: ResolvedModel) -> ResolvedModel:
        """Add the step to a model whose name means its newest checkpoint, which changes. Raises Unavailable."""
        if model.step is not None or model.name in self.models.base_models or model.run is None:
            return model
        name = ModelName(model.run.model_project, model.run.model_name)
        steps = await _steps(self.resources.connect, model.backend, name)
        if not steps:
            return model
        name = name.at(max(steps))
        return replace(model, name=str(name), step=name.step)

    async def _check_checkpoint(self, index: int, model: ResolvedModel) -> None:
        """Check that a model which no run has trained is on the engine. Raises InvalidRequest."""
        if model.run is not None or model.name in self.models.base_models:
            return
        try:
            named = ModelName.parse(model.name)
        except ValueError:  # the name of a W&B artifact, which only the backend can check
            return
        steps = await _steps(self.resources.connect, engine_backend(), named)
        if not steps or named.step not in (None, *steps):
            raise InvalidRequest(("body", "models", index, "model"), f"There is no checkpoint {model.name}.")

    async def _stored(
        self,
        request: EvaluationRequest,
        basis: Basis | None,
        project: str,
        models: tuple[Contestant, ...],
        listed: Models | None,
    ) -> StoredEvaluation:
        chosen = request.environment or (basis.environment if basis else EnvironmentChoice())
        environment = Choice(name=chosen.name, config=chosen.config)
        environment, _ = await pinned(self.resources.database, self.resources.settings, environment, project)
        seed = (basis.seed if basis else HELD_OUT_SEED) if request.seed is None else request.seed
        default_judge, scenarios = await self._check_environment(environment, request, seed, project, models)
        judge = basis.judge if basis and request.judge is None else judge_with_defaults(request.judge, default_judge)
        if listed is not None:
            check_judge(judge, listed)
        agent = basis.agent if basis else None
        if request.agent is not None:
            agent = Choice(name=request.agent.name, config=request.agent.config)
        await asyncio.to_thread(check_agents, agent, environment, self.resources.settings.agent_modules)
        return StoredEvaluation(
            models=models,
            environment=environment,
            judge=judge,
            agent=agent,
            split=request.split,
            scenarios=scenarios,
            samples=request.samples,
            seed=seed,
            temperature=request.temperature,
            max_turns=request.max_turns or (basis.max_turns if basis else _DEFAULTS.max_turns),
            max_completion_tokens=request.max_completion_tokens
            or (basis.max_completion_tokens if basis else _DEFAULTS.max_completion_tokens),
            rollout_timeout_s=request.rollout_timeout_s,
            concurrency=request.concurrency,
            budget=None if request.budget is None else StoredBudget(**request.budget.model_dump()),
        )

    async def _check_environment(
        self, choice: Choice, request: EvaluationRequest, seed: int, project: str, models: Sequence[Contestant]
    ) -> tuple[str, int]:
        """Return the environment's judge and the number of distinct scenarios to evaluate. Raises InvalidRequest."""
        settings, database = self.resources.settings, self.resources.database
        with faults_at(ENVIRONMENT):
            access = EnvironmentAccess(settings)
            with closing(await built_environment(database, settings.data_dir, choice, project, access)) as environment:
                # A synthetic environment's scenarios all differ; elsewhere a repeated scenario would count twice.
                synthetic = isinstance(environment, Synthetic) and environment.synthetic
                count = 1 if synthetic else request.scenarios
                drawn = await asyncio.to_thread(environment.scenarios, request.split, count, seed)
            for index, contestant in enumerate(models):
                where = ("body", "models", index, "prompt")
                try:
                    prompt = await read_stored(database, project, contestant.prompt)
                except UnknownDocument as error:  # it belongs to the model's project, and this is another one
                    raise InvalidRequest(where, str(error)) from error
                if prompt is not None and drawn:
                    replaces = is_replaced(choice)
                    await asyncio.to_thread(check_fits, environment, drawn[0], prompt, where, replaces=replaces)
        return environment.default_judge, request.scenarios if synthetic else len(different(drawn))


def _created(evaluation: StoredEvaluation) -> dict[str, Any]:
    """Return the data of the event that says that the evaluation was created."""
    return {
        "models": [contestant.label for contestant in evaluation.models],
        "environment": evaluation.environment.name,
        "judge": evaluation.judge.name,
        "rollouts": evaluation.slots,
    }


def _gate(request: EvaluationRequest) -> Gate:
    """Return the rule of the gate. The sign test needs one rollout of each scenario; and no look waits for fewer
    scenarios than run at the same time."""
    assert request.gate is not None
    rule, at_once = GateRule(error=request.gate.error), request.concurrency // (2 * request.samples)
    return Gate(
        error=rule.error,
        exact=rule.exact if request.samples == 1 else 0.0,
        look_every=max(rule.look_every, at_once),
    )


def check_judge(judge: Choice, listed: Models) -> Judge:
    """Return the judge. Raises InvalidRequest for one that cannot be built."""
    return built_judge(judge, JudgeServices(models=listed), ("body", "judge"))


def check_new_budget(
    budget: Mapping[str, Any] | None, judge: Choice, prompted: Iterable[str], settings: Settings
) -> None:
    """Raise InvalidRequest if the budget with which work is resumed has dollars, and no price is known for a model."""
    noted = NotedModels(ListedModels(settings))
    if budget and budget.get("max_usd") is not None:
        check_judge(judge, noted)
        for name in prompted:
            noted.model(name)
        noted.check_budget(budget["max_usd"])


async def _steps(connect: Connect, backend: str, model: ModelName) -> frozenset[int]:
    async with connected(connect, backend, f"The checkpoints of {model} cannot be looked up now") as connection:
        return await connection.checkpoints(model.project, model.name)


def _require_unique_labels(models: list[Contestant]) -> tuple[Contestant, ...]:
    """Check that the labels are unique. Raises InvalidRequest."""
    labels = [model.label for model in models]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise InvalidRequest(
                ("body", "models", index, "label"),
                f"Another model has the label {label!r}; give it a label of its own.",
            )
    return tuple(models)


def _one_engine(engines: list[str | None]) -> str | None:
    """Return the engine that has the models. Raises InvalidRequest if there are several."""
    names = {engine for engine in engines if engine is not None}
    if len(names) > 1:
        raise InvalidRequest(("body", "models"), "The models are on different engines; no worker reaches all of them.")
    return next(iter(names), None)
