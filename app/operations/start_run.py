"""Starts a run: checks the request as far as possible, fills in defaults, saves the run and its documents."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import get_args

import structlog
from sqlalchemy import ScalarSelect, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.backends import base_of, connected, refusal, train_options, unusable_base_models
from app.datasets.references import UnknownDataset, demonstrations, pin
from app.db.tables import Reflection, Run
from app.domain.event_types import EventType
from app.domain.names import TINY_BASE
from app.domain.run_state import RunStatus
from app.domain.stored_request import Choice
from app.errors import InvalidRequest, Unavailable
from app.events.log import append
from app.listed_models import ListedModels, NotedModels
from app.operations.base_model import missing_modules, rate_warnings, root_of, temperature_warnings
from app.operations.base_model_warnings import base_model_warnings
from app.operations.fitting_judges import Examined, unattempted, unfit
from app.operations.own_agent_requests import OwnAgentRequests
from app.operations.run_disk import REMEDY, need_of, why_too_little
from app.operations.run_plan import (
    RunPlan,
    WarmStartPlan,
    judge_with_defaults,
    plan_of,
    with_defaults,
    with_demonstrations,
    with_shared_scenarios,
)
from app.resources import Resources
from app.runs import documents
from app.runs.configuration import make_agent, make_environment, make_judge, make_own_agent, runner_of
from app.runs.documents import NewDocument, UnknownDocument
from app.runs.environment_access import EnvironmentAccess
from app.runs.expected_work import ExpectedWork, expected_work
from app.runs.queries import RunQueries, selected_engine
from app.runs.resume_point import INHERITED, begin_with
from app.runs.store import RunStore
from app.schemas.run_request import LearnLoopRequest
from app.settings import Settings
from app.webhooks.endpoints import Endpoints, NewEndpoint
from environment.base import Environment, Json, Solvable, Split, Synthetic
from environment.plugins import PluginFault
from environment.registry import UnknownEnvironment
from environment.scenario_order import different
from judges.base import Judge, JudgeServices
from judges.registry import UnknownJudge
from training.backends.base import CountingBackend, Overlong, StoringBackend, TuningBackend
from training.backends.embedded import NAME as EMBEDDED
from training.backends.local.backend import NAME as LOCAL
from training.backends.serverless import NAME as SERVERLESS
from training.base_defaults import MOST_DEMONSTRATIONS, Base, Default, usual_rate
from training.base_model_files import TIED, tied_modules
from training.disk_need import DiskNeed
from training.protocol.model_name import ModelName
from training.protocol.tool_formats.chosen import template_text
from training.rollout.agents.registry import UnknownAgent
from training.tuning import Tuning
from training.warm_start import AllOverlong, NoOracle, iterations_of

Location = tuple[str | int, ...]
"""Location of a field in the request, like pydantic's `loc`."""


MAX_SUPERVISED_ITERATIONS = 10_000
_COUNTED_WHEN_POSTED = 2_000
"""Number of stored demonstrations up to which their tokens are counted before the run is accepted."""

log = structlog.get_logger(__name__)

SaveReply = Callable[[AsyncSession, "Started"], Awaitable[None]]
"""Saves the reply to the request in the caller's transaction, given the run without its endpoints."""


@dataclass(frozen=True, slots=True)
class Started:
    """Webhook endpoints, warnings, defaults and expected work of a run that was queued."""

    endpoints: Sequence[NewEndpoint]
    warnings: Sequence[str]
    defaults: Mapping[str, Default]
    expected: ExpectedWork


@dataclass(frozen=True, slots=True)
class Parent:
    """The run and the step that a run is forked from."""

    run_id: str
    step: int
    learned: Reflection | None
    """What the parent's environment had learned by that step."""
    first_scenario: int = 0
    """Number of the first training scenario that the parent rolled out."""


@dataclass(frozen=True, slots=True)
class RunStarter:
    """Starts runs."""

    resources: Resources
    store: RunStore
    queries: RunQueries
    endpoints: Endpoints
    wake_worker: Callable[[], None]

    async def start(
        self,
        run_id: str,
        request: LearnLoopRequest,
        actor: str,
        save_reply: SaveReply,
        parent: Parent | None = None,
    ) -> Started:
        """Queue the run.

        `save_reply` is called in the transaction that creates the run, so that either both are saved or neither. Raises
        InvalidRequest, ModelBusy, or Unavailable if the request cannot be checked because the engine is unavailable.
        """
        settings = self.resources.settings
        plan = replace(plan_of(request, settings, run_id), first_scenario=parent.first_scenario if parent else 0)
        engine = await self._check_backend(plan)
        root = await root_of(self.queries, plan, self._bases)
        base = await asyncio.to_thread(base_of, settings, plan.backend, root.base_model, root.tuning)
        await self.endpoints.check(request.webhooks)
        plan = await self._pin_data(plan)
        plan = await self._without_overlong(await self._add_warm_start(plan))
        environment = await self._resolve_documents(plan)
        state = parent.learned.state if parent and parent.learned else None
        plan, new = await asyncio.to_thread(
            _validate_plan, plan, base, environment, settings, state, may_demonstrate=root.is_new
        )
        run = _new_run(plan, engine, parent)
        expected = await expected_work(self.resources.database, run)
        need = await self._fitting(plan, root.base_model, root.tuning, expected.rollouts.most)
        if need is not None:
            expected = replace(expected, disk_bytes=need.total)
        started = Started([], plan.warnings, plan.defaults, expected)
        endpoints: list[NewEndpoint] = []

        async def also(tx: AsyncSession) -> None:
            endpoints.extend(await self.endpoints.attach(tx, run_id, run.model_project, request.webhooks))
            await tx.flush()  # the first event is sent to these endpoints as well
            if parent is not None:
                await _save_fork(tx, run_id, parent, actor)
            await save_reply(tx, started)

        await self.store.create(run, new, also=also, actor=actor)
        self.wake_worker()
        return replace(started, endpoints=endpoints)

    async def _fitting(self, plan: RunPlan, base_model: str, tuning: Tuning | None, rollouts: int) -> DiskNeed | None:
        """Return how much disk the run takes; None if that is unknown. Raises InvalidRequest if it does not fit."""
        settings, kept = self.resources.settings, plan.request.checkpoints
        if plan.backend != EMBEDDED:
            return None
        need = await asyncio.to_thread(need_of, settings, base_model, tuning, kept, plan.iterations_total, rollouts)
        if need is None:
            return None
        why = why_too_little(settings, need, await self._free_on_engine(plan))
        if why is not None:
            raise InvalidRequest(("body", "checkpoints"), f"{why} {REMEDY}")
        return need

    async def _free_on_engine(self, plan: RunPlan) -> int | None:
        """Return how many bytes are free on the engine's disk; None if it cannot be asked now."""
        model = plan.model
        if not self.resources.reaches(await self.queries.engine_of(plan.backend, model.project, model.name)):
            return None
        try:
            async with connected(self.resources.connect, plan.backend) as backend:
                return await backend.free_bytes() if isinstance(backend, StoringBackend) else None
        except Unavailable as error:
            log.warning("free disk not asked", run_id=plan.run_id, error=str(error))
            return None

    async def _check_backend(self, plan: RunPlan) -> str | ScalarSelect[str | None] | None:
        """Return the engine that must drive the run, None for any, or a query that finds it when the run is saved.

        Raises InvalidRequest, Unavailable.
        """
        backend, model = plan.backend, plan.model
        if (refused := refusal(self.resources.settings, backend, model.base_model)) is not None:
            raise InvalidRequest(("body", "backend"), refused)
        for option in plan.train_options:
            if option not in (taken := train_options(backend)):
                raise InvalidRequest(
                    ("body", "train_options", option),
                    f"The backend {backend} does not take {option}. Available: {', '.join(sorted(taken))}.",
                )
        _check_pipeline(plan)
        if backend != EMBEDDED and plan.request.warm_start is not None:
            raise InvalidRequest(
                ("body", "warm_start"),
                f"The backend {backend} does not train on demonstrations; {EMBEDDED} does. Leave out warm_start, or "
                "start from a base model that can do the task.",
            )
        if backend != EMBEDDED and plan.model.tuning is not None:
            raise InvalidRequest(
                ("body", "model", "tuning"),
                f"The backend {backend} decides itself which part of a model it trains; only {EMBEDDED} takes it from "
                "the request. Leave out model.tuning.",
            )
        await asyncio.to_thread(_check_thinking, plan, self.resources.settings)
        if backend != EMBEDDED:
            # other backends have their own base models, so an unknown one is only noticed when the run starts
            return None
        base_model, bases = model.base_model, self._bases
        if base_model in bases:
            if (fault := await self._base_model_fault(base_model)) is not None:
                raise InvalidRequest(
                    ("body", "model", "base_model"), f"The base model {base_model!r} cannot be used: {fault}"
                )
            await self._check_tuning(plan, ModelName(model.project, model.name))
            return selected_engine(backend, model.project, model.name).scalar_subquery()
        source = _checkpoint(base_model)
        if source is not None and source.project == model.project:
            engine = await self.queries.engine_of(backend, source.project, source.name)
            if source.step in await self._checkpoints(backend, engine, source):
                await self._check_tuning(plan, source)
                return engine
        raise InvalidRequest(
            ("body", "model", "base_model"),
            f"Unknown base model {base_model!r}. Available: {', '.join(sorted(bases))}, "
            f"and checkpoints of project {model.project} as PROJECT/NAME@STEP.",
        )

    async def _base_model_fault(self, base_model: str) -> str | None:
        """Return why a base model cannot be used, or None if it can. The shipped one always can."""
        if base_model not in self.resources.settings.base_models:
            return None
        return (await asyncio.to_thread(unusable_base_models, self.resources.settings)).get(base_model)

    @property
    def _bases(self) -> set[str]:
        """Names of the base models on this machine."""
        return {TINY_BASE, *self.resources.settings.base_models}

    async def _check_tuning(self, plan: RunPlan, model: ModelName) -> None:
        """Raise InvalidRequest if the request asks for a tuning that the existing model does not have, or for modules
        that the base does not have. Raises Unavailable."""
        asked, where = plan.model.tuning, ("body", "model", "tuning")
        if asked is None:
            return
        directory = self.resources.settings.base_models.get(plan.model.base_model)
        if directory is not None:
            if tied := await asyncio.to_thread(tied_modules, directory, asked.target_modules):
                fault = TIED.format(base=plan.model.base_model, names=", ".join(tied))
                raise InvalidRequest((*where, "target_modules"), fault)
            lacking = await asyncio.to_thread(missing_modules, directory, asked.target_modules)
            if lacking:
                raise InvalidRequest(
                    (*where, "target_modules"),
                    f"{plan.model.base_model} has no linear layer named {', '.join(lacking)}.",
                )
        found = await self._tuning(plan.backend, model)
        if found is not None and not asked.equals(found):
            raise InvalidRequest(
                where,
                f"The model {model.project}/{model.name} is trained {found}. Leave out model.tuning to keep that.",
            )

    async def _tuning(self, backend: str, model: ModelName) -> Tuning | None:
        """Return how the model is trained; None if it does not exist or this process cannot reach its engine."""
        if not self.resources.reaches(await self.queries.engine_of(backend, model.project, model.name)):
            return None
        undone = "The model's tuning cannot be checked now"
        async with connected(self.resources.connect, backend, undone) as found:
            return await found.tuning(model.project, model.name) if isinstance(found, TuningBackend) else None

    async def _checkpoints(self, backend: str, engine: str | None, model: ModelName) -> frozenset[int] | range:
        """Return the steps of a model that a run can start from.

        If this process cannot reach the model's engine, any step is accepted, and a wrong one is noticed when the run
        starts.
        """
        if not self.resources.reaches(engine):
            return range(2**31)
        async with connected(self.resources.connect, backend, "The base model cannot be checked now") as found:
            return await found.checkpoints(model.project, model.name)

    async def _pin_data(self, plan: RunPlan) -> RunPlan:
        """Add the versions of the inbox and the scenarios that the environment names, and notes on them."""
        project = plan.model.project
        own_agents = OwnAgentRequests(self.resources.database, self.resources.settings)
        choice, notes = await own_agents.prepared(plan.environment, project)
        try:
            pinned = await pin(self.resources.database, self.resources.settings.data_dir, choice, project)
        except UnknownDataset as error:
            raise InvalidRequest(("body", "environment", "config", error.kind), str(error)) from error
        return replace(plan, environment=pinned, warnings=(*plan.warnings, *notes))

    async def _add_warm_start(self, plan: RunPlan) -> RunPlan:
        """Add the version of the demonstrations and the number of iterations that train on them."""
        start = plan.request.warm_start
        if start is None:
            return plan
        source = start.demonstrations.model_dump()
        if "dataset" in source:
            source = await self._stored_demonstrations(source["dataset"], plan.model.project)
        count = source.get("count") or source["oracle"]
        iterations = iterations_of(count, start.epochs, start.held_out, start.demonstrations_per_iteration)
        if iterations > MAX_SUPERVISED_ITERATIONS:
            raise InvalidRequest(
                ("body", "warm_start", "demonstrations_per_iteration"),
                f"{count} demonstrations in {start.epochs} epochs make {iterations:,} iterations, "
                f"and {MAX_SUPERVISED_ITERATIONS:,} are possible.",
            )
        return replace(plan, warm_start=WarmStartPlan(source, iterations))

    async def _without_overlong(self, plan: RunPlan) -> RunPlan:
        """Add a warning that names the stored demonstrations that the model's context has no room for. Raises
        InvalidRequest if no other is left. What cannot be counted now is counted when the run starts."""
        source = plan.warm_start.demonstrations if plan.warm_start else {}
        if "sha256" not in source or source["count"] > _COUNTED_WHEN_POSTED:
            return plan
        model, database = plan.model, self.resources.database
        if not self.resources.reaches(await self.queries.engine_of(plan.backend, model.project, model.name)):
            return plan
        text = await documents.stored_text(database, model.project, "demonstrations", source["sha256"])
        found = await self._overlong(plan, await asyncio.to_thread(json.loads, text))
        if found is None or not found.tokens:
            return plan
        if len(found.tokens) == found.total:
            raise InvalidRequest(("body", "warm_start", "demonstrations"), str(AllOverlong(found)))
        return replace(plan, warnings=(*plan.warnings, str(found)))

    async def _overlong(self, plan: RunPlan, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong | None:
        """Return which of the demonstrations are too long for the model, or None if that cannot be found out now."""
        try:
            async with connected(self.resources.connect, plan.backend) as backend:
                if not isinstance(backend, CountingBackend):
                    return None
                return await backend.overlong(plan.model.base_model, demonstrations)
        except (Unavailable, ValueError) as error:
            log.warning("demonstrations not counted", run_id=plan.run_id, error=str(error))
            return None

    async def _stored_demonstrations(self, name: str, project: str) -> dict[str, Json]:
        """Return the version of the demonstrations that the name currently means."""
        try:
            found = await demonstrations(self.resources.database, self.resources.settings.data_dir, name, project)
        except UnknownDataset as error:
            raise InvalidRequest(("body", "warm_start", "demonstrations", "dataset"), str(error)) from error
        return {"sha256": found.sha256, "name": found.name, "version": found.version, "count": found.size}

    async def _resolve_documents(self, plan: RunPlan) -> Choice:
        """Return the environment with the stored documents that it refers to."""
        try:
            return await documents.resolve_references(
                self.resources.database, self.resources.settings.data_dir, plan.environment, plan.model.project
            )
        except UnknownDocument as error:
            short = error.kind == "graph" and plan.request.graph is not None
            place = ("body", "graph") if short else ("body", "environment", "config", error.kind)
            raise InvalidRequest(place, str(error)) from error


def _check_pipeline(plan: RunPlan) -> None:
    """Raise InvalidRequest if rollouts cannot run ahead, or if their staleness would not be corrected."""
    if plan.request.pipeline.max_staleness == 0:
        return
    if plan.backend == LOCAL:
        raise InvalidRequest(
            ("body", "pipeline", "max_staleness"),
            f"The backend {LOCAL} samples and trains in turns, so that rollouts cannot run ahead of training: set it "
            f"to 0, or use {EMBEDDED} or {SERVERLESS}.",
        )
    options = plan.train_options
    if options.get("precalculate_logprobs") and not options.get("truncated_importance_sampling"):
        raise InvalidRequest(
            ("body", "train_options", "precalculate_logprobs"),
            "With precalculate_logprobs the loss no longer sees that rollouts were sampled from an older policy "
            "(pipeline.max_staleness): leave it out, or set truncated_importance_sampling, too.",
        )


def _checkpoint(base_model: str) -> ModelName | None:
    try:
        return ModelName.parse(base_model)
    except ValueError:
        return None


def _new_run(plan: RunPlan, engine: str | ScalarSelect[str | None] | None, parent: Parent | None) -> Run:
    assert plan.judge is not None
    assert plan.base is not None
    return Run(
        id=plan.run_id,
        status=RunStatus.QUEUED,
        request=plan.stored(),
        environment=plan.environment.name,
        judge=plan.judge.name,
        backend=plan.backend,
        engine=engine,
        model_project=plan.model.project,
        model_name=plan.model.name,
        base_model=plan.model.base_model,
        iterations_total=plan.iterations_total,
        warnings=list(plan.warnings),
        defaults={path: asdict(default) for path, default in plan.defaults.items()},
        usual_learning_rate=usual_rate(plan.base) if plan.base.is_sized else None,
        parent_run_id=parent.run_id if parent else None,
        parent_step=parent.step if parent else None,
    )


async def _save_fork(tx: AsyncSession, run_id: str, parent: Parent, actor: str) -> None:
    """Record the fork in the parent's log, and copy the environment's state, because the parent can be deleted."""
    data = {"run_id": run_id, "step": parent.step}
    await append(tx, parent.run_id, EventType.RUN_FORKED, actor, data)
    if parent.learned is not None:
        row = {"state": parent.learned.state, "trajectory_id": parent.learned.trajectory_id}
        await tx.execute(insert(Reflection), [{"run_id": run_id, "iteration": INHERITED, **row}])


def _validate_plan(
    plan: RunPlan,
    base: Base,
    environment: Choice,
    settings: Settings,
    state: Mapping[str, Json] | None,
    *,
    may_demonstrate: bool,
) -> tuple[RunPlan, list[NewDocument]]:
    """Return the complete plan, with references to documents and warnings, and the documents to store.

    `environment` is the plan's environment with all documents inserted. This builds everything that the run will build,
    restores `state` and draws a scenario of each split, so that a bad choice is reported now and not during the run.
    """
    request = plan.request
    short = request.graph is not None and not request.environment.config
    config = ("body", "graph") if short else ("body", "environment", "config")
    named = ("body", "environment", "name")
    with _as_fault_of(named, UnknownEnvironment, PluginFault), _as_fault_of(config, ValueError):
        made = make_environment(environment, settings.data_dir, EnvironmentAccess(settings))
        try:
            begin_with(made, state)
            for split in get_args(Split):
                made.scenarios(split, 1, request.seed)
            _check_oracle(plan.warm_start, made)
            available = partial(_available, made, request.evaluation.seed)
            untried = unattempted(made, request.seed)
            if may_demonstrate and base.is_sized and "warm_start" not in request.model_fields_set:
                plan = _with_demonstrations(plan, made, available)
            plan = with_shared_scenarios(with_defaults(plan, base, available), available)
        finally:
            made.close()
        stored, new = documents.extract_documents(plan.environment, environment, plan.model.project)
    _check_agent(request, environment, settings)
    judge = judge_with_defaults(request.judge, made.default_judge)
    models = NotedModels(ListedModels(settings))
    _check_judges(request, judge, JudgeServices(rubric=made.rubric, models=models), untried)
    models.check_budget(request.budget.max_usd if request.budget else None)
    warnings = (
        *plan.warnings,
        *_warnings(plan.model.base_model, made, environment),
        *base_model_warnings(settings, plan.backend, plan.model.base_model),
        *rate_warnings(request, base),
        *temperature_warnings(request),
        *models.warnings,
    )
    return replace(plan, environment=stored, judge=judge, warnings=warnings), new


def _with_demonstrations(plan: RunPlan, made: Environment, available: Callable[[Split, int], int]) -> RunPlan:
    """Return the plan with a warm start, if the environment has demonstrations and its own loop plays them."""
    if not isinstance(made, Solvable) or plan.request.agent is not None or runner_of(plan.environment) is not None:
        return plan
    count = available("train", MOST_DEMONSTRATIONS)
    return with_demonstrations(plan, count) if count > 1 else plan


def _available(environment: Environment, seed: int, split: Split, count: int) -> int:
    """Return how many of that many scenarios of a split differ. Those of a synthetic environment all do."""
    if isinstance(environment, Synthetic) and environment.synthetic:
        return count
    return len(different(environment.scenarios(split, count, seed)))


def _check_oracle(warm_start: WarmStartPlan | None, environment: Environment) -> None:
    """Raise InvalidRequest if demonstrations are to come from an environment that cannot solve its own scenarios."""
    if warm_start is not None and "oracle" in warm_start.demonstrations and not isinstance(environment, Solvable):
        raise InvalidRequest(("body", "warm_start", "demonstrations", "oracle"), str(NoOracle(environment.name)))


def _check_agent(request: LearnLoopRequest, environment: Choice, settings: Settings) -> None:
    """Raise InvalidRequest if the agent cannot be built, or if the environment has its own as well."""
    with _as_fault_of(("body", "environment", "config", "runner"), ValueError):
        make_own_agent(environment, settings.agent_modules)
    if request.agent is None:
        return
    if runner_of(environment) is not None:
        raise InvalidRequest(
            ("body", "agent"), f"The environment {environment.name} names its agent in `runner`: leave out `agent`."
        )
    where = ("body", "agent")
    with _as_fault_of((*where, "name"), UnknownAgent, PluginFault), _as_fault_of((*where, "config"), ValueError):
        make_agent(Choice(name=request.agent.name, config=request.agent.config))


def _warnings(base_model: str, environment: Environment, choice: Choice) -> list[str]:
    """Return reasons why the run may learn nothing."""
    if base_model != TINY_BASE or (isinstance(environment, Synthetic) and environment.synthetic):
        return []
    if runner_of(choice) is not None:  # the agent's requests are unknown until it makes them
        return [
            f"The base model {TINY_BASE} only knows emails and graphs as Learnloop invents them, and tools like those "
            "of its own environments. Unless your agent works with these, the run may learn nothing: use another base "
            "model (`learnloop bases add`)."
        ]
    return [
        f"The base model {TINY_BASE} only knows the emails and graphs that Learnloop invents. On other data its "
        "rollouts are as good as equal, and the run may learn nothing: use another base model (`learnloop bases add`)."
    ]


def _check_judges(request: LearnLoopRequest, judge: Choice, services: JudgeServices, untried: Examined) -> None:
    """Raise InvalidRequest for a judge that cannot be built, or that can score none of the rollouts."""
    where = ("body", "judge")
    if isinstance(request.judge, list):
        for number, part in enumerate(judge.config["judges"]):
            _built_judge(Choice(name=part["name"], config=part["config"]), services, (*where, number))
        with _as_fault_of(where, ValueError):
            built = make_judge(judge, services)
    else:
        built = _built_judge(judge, services, where)
    if (reason := unfit(built, untried)) is not None:
        raise InvalidRequest(where, f"The judge {judge.name} can score no rollout of this environment: {reason}.")


def _built_judge(judge: Choice, services: JudgeServices, where: Location) -> Judge:
    with _as_fault_of((*where, "name"), UnknownJudge, PluginFault), _as_fault_of((*where, "config"), ValueError):
        return make_judge(judge, services)


@contextmanager
def _as_fault_of(loc: Location, *errors: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds as InvalidRequest for the field at `loc`."""
    try:
        yield
    except errors as fault:
        raise InvalidRequest(loc, str(fault)) from fault


def _check_thinking(plan: RunPlan, settings: Settings) -> None:
    """Raise InvalidRequest if the request sets a switch that the base's chat template does not have. Reads files: call
    it in a thread. A checkpoint has the template of a base that was checked."""
    base, where = plan.model.base_model, ("body", "model", "enable_thinking")
    if plan.model.enable_thinking is None:
        return
    if plan.backend != EMBEDDED:
        raise InvalidRequest(where, f"The backend {plan.backend} does not take enable_thinking; only {EMBEDDED} does.")
    directory = settings.base_models.get(base)
    if base == TINY_BASE or (directory is not None and "enable_thinking" not in template_text(directory)):
        raise InvalidRequest(where, f"The chat template of {base} has no switch enable_thinking. Leave it out.")
