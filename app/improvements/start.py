"""Starts an improvement: checks the request as far as possible, counts its tasks, and saves it."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.backends import base_of
from learnloop_service.app.db.tables import Candidate, Improvement
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.domain.stored_evaluation import Evaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import InvalidRequest, Location
from learnloop_service.app.improvements.champion import ImprovementTasks
from learnloop_service.app.improvements.jobs import evaluation_of
from learnloop_service.app.listed_models import ListedModels
from learnloop_service.app.operations.named import ENVIRONMENT, built_environment, faults_at
from learnloop_service.app.operations.start.evaluation import EvaluationStarter
from learnloop_service.app.operations.start.run_plan import plan_of
from learnloop_service.app.runs.configuration import runner_of
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.stored_prompts import pinned_prompt, read_stored
from learnloop_service.app.schemas.evaluations import FEWEST_TASKS, ModelToEvaluate
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.base import Environment, Reflective, Solvable, Split, Synthetic
from learnloop_service.environment.scenario_order import different
from learnloop_service.environment.wording import counted
from learnloop_service.judges.base import UnknownModel
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.bases.defaults import MOST_DEMONSTRATIONS, defaults_of
from learnloop_service.training.prompt import InvalidPrompt
from learnloop_service.training.protocol.validation_message import message_of

_FEEDBACK = "feedback"
_TINY_DEMONSTRATIONS = 64
"""Number of the oracle's demonstrations for a base whose size is unknown."""
_ON_CPU, _ON_GPU = (64, 64), (128, 152)
"""Numbers of validation and of test tasks."""
_MOST_COUNTED = 1_000
"""Number of tasks of a split that are looked at."""


@dataclass(frozen=True, slots=True)
class ImprovementStarter:
    """Starts improvements."""

    service: HandlerResources
    evaluations: EvaluationStarter

    async def start(self, id: str, request: ImprovementRequest, caller: Caller) -> tuple[Improvement, list[Candidate]]:
        """Return the rows to save, which the watcher then works on. Raises InvalidRequest, NotFound or Unavailable."""
        settings = self.service.settings
        project = caller.project_of(request.project) or settings.art_project
        plan = plan_of(_learn_loop(request), settings, id)
        base = await asyncio.to_thread(base_of, settings, plan.backend, plan.model.base_model, plan.model.tuning)
        validation, test = _ON_GPU if base.is_sized and base.device == "cuda" else _ON_CPU
        evaluation = await self._checked(request, caller, project, request.validation or validation)
        self._check_models(request)
        database, data_dir = self.service.database, settings.data_dir
        prompts = [
            await pinned_prompt(database, data_dir, name, project, ("body", "prompts", index))
            for index, name in enumerate(request.prompts)
        ]
        test = test if request.test is None else request.test
        request = request.model_copy(update={"validation": evaluation.scenarios, "test": test})
        request, oracle = await self._tasks(request, evaluation, project, prompts)
        [as_it_is] = evaluation.models
        iterations = None
        if base.is_sized:  # otherwise it is that of any run
            iterations = int(defaults_of(base, after_demonstrations=True)["iterations"].value)
        facts = {
            "oracle": oracle and min(oracle, MOST_DEMONSTRATIONS if base.is_sized else _TINY_DEMONSTRATIONS),
            "trainable": as_it_is.kind == "trained" and is_on_engine(plan.backend),
            "iterations_after_imitation": iterations,
        }
        stored = request.model_dump(mode="json", by_alias=True) | {"environment": evaluation.environment.model_dump()}
        actor, by = caller.actor, caller.started_by
        same = {
            "status": ImprovementStatus.RUNNING,
            "request": stored,
            "facts": facts,
            "actor": actor,
            "started_by": by,
        }
        improvement = Improvement(id=id, project=project, champion=0, **same)
        candidates = [
            Candidate(
                improvement_id=id,
                number=number,
                rung=Rung.PROMPT if number else Rung.AS_IT_IS,
                state=CandidateState.PROPOSED,
                author=actor,
                prompt=None if prompt is None else prompt.model_dump(),
                model=as_it_is.model,
                listed=as_it_is.kind == "prompted",
            )
            for number, prompt in enumerate([as_it_is.prompt, *prompts])
        ]
        return improvement, candidates

    async def _checked(self, request: ImprovementRequest, caller: Caller, project: str, validation: int) -> Evaluation:
        """Return the evaluation of the agent as it is, with all names pinned. Raises InvalidRequest."""
        # Without a prompt that is named, it is that of the run that trained the model.
        prompt: dict[str, Any] = {} if request.prompt is None and request.from_ else {"prompt": request.prompt}
        kind = "prompted" if request.from_ in ListedModels(self.service.settings).names else "model"
        model = ModelToEvaluate(label="as it is", **{kind: request.from_ or request.model.base_model}, **prompt)
        budget = request.budget.model_dump() if request.budget is not None else {}
        measured = evaluation_of(request, [model], budget, split="validation", scenarios=validation)
        try:
            evaluation, _, _ = await self.evaluations.prepared(measured, caller, None, project)
        except InvalidRequest as error:
            raise InvalidRequest(_location(tuple(error.loc), request), str(error)) from error
        return evaluation

    def _check_models(self, request: ImprovementRequest) -> None:
        """Raise InvalidRequest for a model that is not listed."""
        listed = ListedModels(self.service.settings)
        for index, name in enumerate(request.models):
            try:
                listed.model(name)
            except UnknownModel as error:
                raise InvalidRequest(("body", "models", index), str(error)) from error

    async def _tasks(
        self,
        request: ImprovementRequest,
        evaluation: Evaluation,
        project: str,
        prompts: Sequence[PromptReference | None],
    ) -> tuple[ImprovementRequest, int]:
        """Return the request with the number of test tasks that there are, and how many of the training tasks the
        environment can demonstrate.

        Raises InvalidRequest for an environment whose candidates cannot be compared, for too few tasks and for a task
        in two splits, and for a prompt that cannot be tried.
        """
        settings, database, choice = self.service.settings, self.service.database, evaluation.environment
        with faults_at(ENVIRONMENT):
            built = await built_environment(database, settings.data_dir, choice, project, EnvironmentAccess(settings))
        with closing(built) as environment:
            if isinstance(environment, Reflective):
                why = f"{choice.name} learns along with the agent, so candidates cannot be compared."
                raise InvalidRequest((*ENVIRONMENT, "name"), why)
            counts = await asyncio.to_thread(_counts, environment, request)
            _check(request, evaluation, counts)
            request = request.model_copy(update={"test": min(counts["test"], request.test or 0)})
            champion = await read_stored(database, project, evaluation.models[0].prompt)
            tasks = await asyncio.to_thread(ImprovementTasks.of, environment, request, champion)
            for index, reference in enumerate(prompts):
                prompt = await read_stored(database, project, reference)
                assert prompt is not None  # it is named
                try:
                    await asyncio.to_thread(tasks.quotations, prompt, {})
                except InvalidPrompt as error:
                    part = [] if error.part is None else [error.part]
                    raise InvalidRequest(("body", "prompts", index, *part), error.why) from error
            is_played_elsewhere = evaluation.agent is not None or runner_of(choice) is not None
            solvable = isinstance(environment, Solvable) and not is_played_elsewhere
            return request, counts["train"] if solvable else 0


def _learn_loop(request: ImprovementRequest) -> LearnLoopRequest:
    """Return the learn-loop of GRPO, as far as it is known. Raises InvalidRequest."""
    try:
        return LearnLoopRequest.model_validate({**request.run, "model": request.model.model_dump()})
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        raise InvalidRequest(("body", "run", *first["loc"]), message_of(first)) from error


def _counts(environment: Environment, request: ImprovementRequest) -> dict[Split, int]:
    """Return the number of tasks by split, at most `_MOST_COUNTED`. Raises InvalidRequest for a task in two splits."""
    if isinstance(environment, Synthetic) and environment.synthetic:
        return dict.fromkeys(get_args(Split), _MOST_COUNTED)
    seen = dict[str, Split]()
    counts = dict[Split, int]()
    for split in get_args(Split):
        seed = request.seed if split == "train" else request.held_out_seed
        tasks = different(environment.scenarios(split, _MOST_COUNTED, seed))
        for task in tasks:
            if seen.setdefault(task.id, split) != split:
                raise InvalidRequest(
                    (*ENVIRONMENT, "config"),
                    f"Task {task.id!r} is in the splits {seen[task.id]} and {split}. What trains, what chooses and "
                    "what is reported have to be different tasks.",
                )
        counts[split] = len(tasks)
    return counts


def _check(request: ImprovementRequest, evaluation: Evaluation, counts: dict[Split, int]) -> None:
    """Raise InvalidRequest if nothing could be shown."""
    if evaluation.scenarios < FEWEST_TASKS:
        tasks = f"{counted(evaluation.scenarios, 'validation task')}, of at least {FEWEST_TASKS}"
        why = f"The environment has {tasks}: with fewer no improvement can be shown. Add tasks, or name their splits."
        raise InvalidRequest(("body", "validation"), why)
    if not counts["train"]:
        raise InvalidRequest(ENVIRONMENT, "The environment has no training tasks, which candidates are screened on.")
    if evaluation.judge.name == _FEEDBACK:
        raise InvalidRequest(
            ("body", "judge", "name"), "The judge feedback scores what users met, and they have met no candidate."
        )


def _location(loc: Location, request: ImprovementRequest) -> Location:
    """Return where in the improvement's request a fault of its first evaluation is."""
    match loc:
        case ("body", "models", 0, "prompt"):
            return ("body", "prompt")
        case ("body", "models", 0, *_):
            return ("body", "from") if request.from_ is not None else ("body", "model", "base_model")
        case ("body", "scenarios"):
            return ("body", "validation")
        case _:
            return loc
