"""Completes the plan of a run by building everything that the run will build, so that a bad choice is reported now."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import get_args

from learnloop_service.app.datasets.documents import NewDocument, extract_documents, resolve_references
from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.listed_models import ListedModels, NotedModels
from learnloop_service.app.operations.fitting_judges import Examined, unattempted, unfit
from learnloop_service.app.operations.named import ENVIRONMENT, built_judge, check_agents, faults_at
from learnloop_service.app.operations.start.base_model import Root
from learnloop_service.app.operations.start.base_model_warnings import run_warnings
from learnloop_service.app.operations.start.run_plan import (
    RunPlan,
    WarmStartPlan,
    judge_with_defaults,
    with_defaults,
    with_demonstrations,
)
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.configuration import is_replaced, make_environment, make_judge, runner_of
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.resume_point import begin_with
from learnloop_service.app.runs.stored_prompts import check_fits, read_stored
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.settings import Settings
from learnloop_service.environment.base import Environment, Json, Solvable, Split, Synthetic
from learnloop_service.environment.scenario_order import different
from learnloop_service.judges.base import JudgeServices
from learnloop_service.training.bases.defaults import MOST_DEMONSTRATIONS
from learnloop_service.training.loop.warm_start import NoOracle
from learnloop_service.training.prompt import Prompt

_JUDGE = ("body", "judge")


async def validated(
    resources: Resources, plan: RunPlan, root: Root, state: Mapping[str, Json] | None
) -> tuple[RunPlan, list[NewDocument]]:
    """Return the complete plan, with references to documents and warnings, and the documents to store.

    The environment is built, begins with `state` and draws a scenario of each split; agent and judge are built. Raises
    InvalidRequest.
    """
    settings, project = resources.settings, plan.model.project
    with faults_at(ENVIRONMENT, plan.short_fields):
        choice = await resolve_references(resources.database, settings.data_dir, plan.environment, project)
    prompt = await read_stored(resources.database, project, plan.prompt)
    return await asyncio.to_thread(_validated, plan, root, choice, settings, state, prompt)


def _validated(
    plan: RunPlan,
    root: Root,
    choice: Choice,
    settings: Settings,
    state: Mapping[str, Json] | None,
    prompt: Prompt | None,
) -> tuple[RunPlan, list[NewDocument]]:
    """`choice` is the plan's environment with all documents inserted."""
    with ExitStack() as opened:
        with faults_at(ENVIRONMENT, plan.short_fields):
            access = EnvironmentAccess(settings)
            environment = opened.enter_context(closing(make_environment(choice, settings.data_dir, access)))
            begin_with(environment, state)
            plan = _with_tasks(plan, root, environment)
            if prompt is not None:
                [scenario] = environment.scenarios("train", 1, plan.request.seed)
                check_fits(environment, scenario, prompt, ("body", "prompt"), replaces=is_replaced(choice))
            stored, new = extract_documents(plan.environment, choice, plan.model.project)
        return _with_judge(replace(plan, environment=stored), root, choice, environment, settings), new


def _with_tasks(plan: RunPlan, root: Root, environment: Environment) -> RunPlan:
    """Draw a scenario of each split, and complete what follows from how many there are."""
    request = plan.request
    for split in get_args(Split):
        environment.scenarios(split, 1, request.seed)
    _check_oracle(plan.warm_start, environment)
    available = partial(_available, environment, request.evaluation.seed)
    if root.is_new and root.base.is_sized and "warm_start" not in request.model_fields_set:
        plan = _with_own_demonstrations(plan, environment, available)
    return with_defaults(plan, root.base, available)


def _with_judge(plan: RunPlan, root: Root, choice: Choice, environment: Environment, settings: Settings) -> RunPlan:
    """Check the agent, complete the judge, and add the warnings."""
    request = plan.request
    if request.agent is not None and runner_of(choice) is not None:
        raise InvalidRequest(
            ("body", "agent"), f"The environment {choice.name} names its agent in `runner`: leave out `agent`."
        )
    requested = request.agent
    agent = None if requested is None else Choice(name=requested.name, config=requested.config)
    check_agents(agent, choice, settings.agent_modules)
    judge = judge_with_defaults(request.judge, environment.default_judge)
    models = NotedModels(ListedModels(settings))
    services = JudgeServices(rubric=environment.rubric, models=models)
    _check_judge(request, judge, services, _untried(plan, environment))
    models.check_budget(request.budget.max_usd if request.budget else None)
    warnings = (
        *plan.warnings,
        *_unknown_data(plan.model.base_model, environment, choice),
        *run_warnings(plan, root.base, settings),
        *models.warnings,
    )
    return replace(plan, judge=judge, warnings=warnings)


def _untried(plan: RunPlan, environment: Environment) -> Iterator[Examined]:
    """Yield what rollouts of the run begin with. Raises InvalidRequest."""
    with faults_at(ENVIRONMENT, plan.short_fields):
        yield from unattempted(environment, plan.request.seed)


def _with_own_demonstrations(
    plan: RunPlan, environment: Environment, available: Callable[[Split, int], int]
) -> RunPlan:
    """Return the plan with a warm start, if the environment has demonstrations and its own loop plays them."""
    is_played_elsewhere = plan.request.agent is not None or runner_of(plan.environment) is not None
    if not isinstance(environment, Solvable) or is_played_elsewhere:
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


def _unknown_data(base_model: str, environment: Environment, choice: Choice) -> list[str]:
    """Return a warning if the base model knows nothing like the environment's data."""
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


def _check_judge(
    request: LearnLoopRequest, choice: Choice, services: JudgeServices, untried: Iterable[Examined]
) -> None:
    """Raise InvalidRequest for a judge that cannot be built, or that can score none of the rollouts."""
    if isinstance(request.judge, list):
        for number, part in enumerate(choice.config["judges"]):
            built_judge(Choice(name=part["name"], config=part["config"]), services, (*_JUDGE, number))
        try:
            judge = make_judge(choice, services)
        except ValueError as fault:
            raise InvalidRequest(_JUDGE, str(fault)) from fault
    else:
        judge = built_judge(choice, services, _JUDGE)
    if (reason := unfit(judge, untried)) is not None:
        raise InvalidRequest(_JUDGE, f"The judge {choice.name} can score no rollout of this environment: {reason}.")
