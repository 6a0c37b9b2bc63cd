"""The plan of a run that is about to start: its request with defaults filled in and short forms resolved."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

from learnloop_service.app.backends import base_of
from learnloop_service.app.domain.stored_request import Choice, PromptReference, StoredModel
from learnloop_service.app.errors import InvalidRequest, Location
from learnloop_service.app.schemas.run_request import (
    CheckpointsChoice,
    Judges,
    LearnLoopRequest,
    OracleDemonstrations,
    SourceChoice,
    WarmStartChoice,
)
from learnloop_service.app.settings import Settings
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.registry import UnknownEnvironment, document
from learnloop_service.environment.wording import counted
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.bases.defaults import BaseModelFacts, Default, defaults_of, demonstrations, on_collapse
from learnloop_service.training.loop.warm_start import iterations_of
from learnloop_service.training.protocol.model_name import ModelName

_OF_SESSIONS = "agent"
"""The environment whose scenarios can come from sessions."""
_MOST_COUNTED = 10_000
"""How many scenarios of rollouts are drawn at most to find out whether they were demonstrated."""
_KEPT_EVALUATED = 6
"""Evaluated checkpoints besides the best and the newest that a run keeps unless it says otherwise."""
_FEW_KEPT = (
    "All checkpoints of a run can fill a disk. These are what is resumed and stepped back from, and what its page "
    'compares; `"checkpoints": null` keeps all.'
)
_RESOLVED = {"name", "graph", "depth", "source", "environment", "judge", "webhooks", "train_options", "prompt"}
"""Fields of a request that are stored elsewhere or in another form."""


@dataclass(frozen=True, slots=True)
class WarmStartPlan:
    """The demonstrations of a warm start, and the number of iterations that they take."""

    demonstrations: Mapping[str, Json]
    iterations: int

    @property
    def solved_scenarios(self) -> int:
        """Number of training scenarios that the environment demonstrates."""
        return int(self.demonstrations.get("oracle", 0))


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A request and what was derived from it. Each phase of starting a run returns a more complete plan."""

    run_id: str
    request: LearnLoopRequest
    """The request as sent, or with the warm start that it gets by default."""
    environment: Choice
    """The environment without short forms; later with versions of data sets and references to documents."""
    model: StoredModel
    backend: str
    max_turns: int | None
    judge: Choice | None = None
    """The judge; None until the environment, which has a default judge, is known."""
    warm_start: WarmStartPlan | None = None
    """None without a warm start, or until its demonstrations are found."""
    served: Mapping[str, Json] | None = None
    """The stored rows of the served answers that the run learns from, and facts about them; None for other runs."""
    prompt: PromptReference | None = None
    """The stored prompt of the rollouts; None for the environment's texts."""
    first_scenario: int = 0
    """Number of the first training scenario that is rolled out, in a fork of a run with demonstrations."""
    base: BaseModelFacts | None = None
    """What is known of the base model; None until the environment is known."""
    defaults: Mapping[str, Default] = field(default_factory=dict)
    """Defaults for the settings that were not given, by their paths in the request."""
    warnings: tuple[str, ...] = ()
    """Reasons why the run may learn nothing, and notes on its data."""

    @property
    def train_options(self) -> dict[str, Json]:
        """The training options that were given."""
        return self.request.train_options.model_dump(exclude_none=True)

    @property
    def model_name(self) -> ModelName:
        """The name of the model that the run trains."""
        return ModelName(self.model.project, self.model.name)

    @property
    def short_fields(self) -> dict[str, Location]:
        """Locations of what the request gives in a short form and not in `environment.config`."""
        if self.request.graph is None:
            return {}
        graph = ("body", "graph")
        return {"graph": graph} if self.request.environment.config else {"graph": graph, "config": graph}

    @property
    def has_generated_name(self) -> bool:
        """Whether the model is named after the run, so that no other run has trained it."""
        return self.model.name == generated_name(self.run_id)

    @property
    def keep_rollouts(self) -> bool:
        """Whether the rollouts' token ids and log-probabilities are archived."""
        requested = self.request.keep_rollouts
        return is_on_engine(self.backend) if requested is None else requested

    @property
    def iterations_total(self) -> int:
        """Total number of iterations, including those without rollouts."""
        of_record = self.served["iterations"] if self.served else self.warm_start.iterations if self.warm_start else 0
        return self.reinforced_iterations + int(of_record)

    @property
    def reinforced_iterations(self) -> int:
        """Number of iterations with rollouts."""
        requested = self.request.iterations
        return int(self.defaults["iterations"].value) if requested is None else requested

    def stored(self) -> dict[str, Json]:
        """Return the document for the run's row, which StoredRequest parses."""
        whole = self.request.model_dump(exclude=_RESOLVED)
        fill_in(whole, self.defaults)
        if self.warm_start is not None:
            whole["warm_start"] |= {
                "demonstrations": self.warm_start.demonstrations,
                "iterations": self.warm_start.iterations,
            }
        if self.served is not None:
            whole |= {"served": self.served, "served_iterations": self.served["iterations"]}
        is_replacing = whole["replace_groups"] and self.base is not None and self.base.is_sized
        return {
            **whole,
            "environment": _document(self.environment),
            "judge": self.judge and _document(self.judge),
            "max_turns": self.max_turns,
            "train_options": self.train_options,
            "on_collapse": self.request.on_collapse or (on_collapse(self.base) if self.base else "continue"),
            "scenario_sampling": whole["scenario_sampling"] or ("difficulty" if is_replacing else "passes"),
            "backend": self.backend,
            "keep_rollouts": self.keep_rollouts,
            "prompt": self.prompt and self.prompt.model_dump(),
            "model": self.model.as_json(),
            "first_scenario": self.warm_start.solved_scenarios if self.warm_start else self.first_scenario,
        }


def generated_name(run_id: str) -> str:
    """Return the name of a run's model for which no name was given."""
    return f"run-{run_id.lower()}"


def plan_of(request: LearnLoopRequest, settings: Settings, run_id: str) -> RunPlan:
    """Return the plan as far as request and settings determine it. Raises InvalidRequest if short forms conflict."""
    return RunPlan(
        run_id,
        request,
        environment=_environment(request),
        model=StoredModel(
            name=request.model.name or settings.art_model_name or generated_name(run_id),
            project=request.model.project or settings.art_project,
            base_model=request.model.base_model or settings.art_base_model,
            tuning=request.model.tuning.tuning() if request.model.tuning else None,
            enable_thinking=request.model.enable_thinking,
        ),
        backend=request.backend or settings.backend,
        max_turns=_max_turns(request),
    )


def with_defaults(plan: RunPlan, base: BaseModelFacts, available: Callable[[str, int], int]) -> RunPlan:
    """Return the plan with the base's defaults for what was not given, and warnings where scenarios are too few.
    `available` returns how many of a number of scenarios of a split the environment has."""
    request = plan.request
    missing = missing_defaults(request, base)
    evaluation_changes: dict[str, int | str] = {}
    if base.is_sized and request.evaluation.best is None:
        evaluation_changes["best"] = "highest"
    warnings: list[str] = []
    for name, split in (("scenarios", "validation"), ("test_scenarios", "test")):
        requested = getattr(request.evaluation, name)
        size = int(missing[f"evaluation.{name}"].value) if requested is None else requested
        if not size or (count := available(split, size)) == size:
            continue
        if requested is None:
            missing[f"evaluation.{name}"] = Default(count, f"The environment has no more {split} scenarios.")
        else:
            evaluation_changes[name] = count
            warnings.append(
                f"evaluation.{name} is {requested}, and the environment has {counted(count, f'{split} scenario')}: "
                "each is used once."
            )
    retention = request.checkpoints
    if base.is_sized and "checkpoints" not in request.model_fields_set:
        retention = CheckpointsChoice(keep_evaluated=_KEPT_EVALUATED)
        missing |= {f"checkpoints.{name}": Default(value, _FEW_KEPT) for name, value in retention if value is not None}
    update = {"evaluation": request.evaluation.model_copy(update=evaluation_changes), "checkpoints": retention}
    request = request.model_copy(update=update)
    defaults, warnings = {**plan.defaults, **missing}, [*plan.warnings, *warnings]
    plan = replace(plan, request=request, base=base, defaults=defaults)
    return replace(plan, warnings=(*warnings, *_shared_scenarios(plan, available)))


def plan_with_defaults(request: LearnLoopRequest, settings: Settings) -> RunPlan:
    """Return the plan as far as request, settings and base model determine it, as if there were scenarios enough."""
    plan = plan_of(request, settings, "")
    base = base_of(settings, plan.backend, plan.model.base_model, plan.model.tuning)
    return with_defaults(plan, base, lambda _, count: count)


def with_demonstrations(plan: RunPlan, available: int) -> RunPlan:
    """Return the plan with a warm start on the environment's own demonstrations, of which `available` exist."""
    count = demonstrations(available)
    start = WarmStartChoice(demonstrations=OracleDemonstrations(oracle=int(count.value)))
    iterations = iterations_of(int(count.value), start.epochs, start.held_out, start.demonstrations_per_iteration)
    return replace(
        plan,
        request=plan.request.model_copy(update={"warm_start": start}),
        warm_start=WarmStartPlan(start.demonstrations.model_dump(), iterations),
        defaults={**plan.defaults, "warm_start.demonstrations.oracle": count},
    )


def _shared_scenarios(plan: RunPlan, available: Callable[[str, int], int]) -> list[str]:
    """Return a warning if rollouts have to attempt scenarios that are demonstrated as well."""
    demonstrated = plan.warm_start.solved_scenarios if plan.warm_start else 0
    requested = plan.request.groups_per_iteration
    groups = int(plan.defaults["groups_per_iteration"].value) if requested is None else requested
    attempted = min(plan.reinforced_iterations * groups, _MOST_COUNTED)
    needed = demonstrated + attempted
    if not demonstrated or not attempted or (count := available("train", needed)) == needed:
        return []
    if count <= demonstrated:
        return [
            f"No training scenario is left that is not demonstrated ({count} in all): rollouts attempt the same ones."
        ]
    return [
        f"The environment has {counted(count, 'training scenario')}, {demonstrated:,} of them demonstrated: "
        f"rollouts attempt the other {count - demonstrated:,} first."
    ]


def missing_defaults(
    request: LearnLoopRequest, base: BaseModelFacts, *, after_demonstrations: bool | None = None
) -> dict[str, Default]:
    """Return the base's defaults for the settings that the request does not give.

    `after_demonstrations` says whether the run has a warm start; None if the request says it.
    """
    defaults = defaults_of(
        base,
        request.groups_per_iteration,
        request.rollouts_per_group,
        after_demonstrations=request.warm_start is not None if after_demonstrations is None else after_demonstrations,
    )
    return {path: default for path, default in defaults.items() if _is_missing(request, path)}


def request_with_defaults(
    request: LearnLoopRequest, settings: Settings, *, after_demonstrations: bool
) -> dict[str, Json]:
    """Return the request with the defaults of its base model, as far as this machine knows it. For
    `after_demonstrations` see missing_defaults."""
    plan = plan_of(request, settings, "")
    whole = request.model_dump()
    base = base_of(settings, plan.backend, plan.model.base_model, plan.model.tuning)
    fill_in(whole, missing_defaults(request, base, after_demonstrations=after_demonstrations))
    return whole


def fill_in(document: dict[str, Json], defaults: Mapping[str, Default]) -> None:
    """Put the defaults at their paths in a request."""
    for path, default in defaults.items():
        *parts, name = path.split(".")
        reduce(getitem, parts, document)[name] = default.value


def _is_missing(request: LearnLoopRequest, path: str) -> bool:
    *part, name = path.split(".")
    section = getattr(request, part[0]) if part else request
    return section is not None and getattr(section, name) is None


def judge_with_defaults(judge: Judges | None, default: str) -> Choice:
    """Return the judge in its stored form; `default` is the environment's judge."""
    if isinstance(judge, list):
        return Choice(name="blend", config={"judges": [part.model_dump() for part in judge]})
    if judge is None:
        return Choice(name=default)
    return Choice(name=judge.name or default, config=judge.config)


def _document(choice: Choice) -> dict[str, Json]:
    # Not `model_dump`, because the config can contain a large graph.
    return {"name": choice.name, "config": choice.config}


def _environment(request: LearnLoopRequest) -> Choice:
    name, config = request.environment.name, request.environment.config
    if request.source is not None:
        return Choice(name=name, config=_from_source(request, request.source))
    if request.graph is None:
        return Choice(name=name, config=config)
    try:
        environment, _ = document("graph")
    except UnknownEnvironment as error:
        raise InvalidRequest(("body", "graph"), str(error)) from error
    if "name" in request.environment.model_fields_set and name != environment:
        raise InvalidRequest(
            ("body", "graph"), f"A graph can only be given for the environment {environment}, not for {name}."
        )
    if "graph" in config:
        raise InvalidRequest(("body", "graph"), "Give either graph or environment.config.graph.")
    return Choice(name=environment, config={**config, "graph": request.graph})


def _from_source(request: LearnLoopRequest, source: SourceChoice) -> dict[str, Any]:
    """Return the config with the source's scenarios."""
    name, config = request.environment.name, request.environment.config
    if name != _OF_SESSIONS or request.graph is not None:
        raise InvalidRequest(
            ("body", "source"), f"Scenarios from sessions are for the environment {_OF_SESSIONS}, not for {name}."
        )
    if "scenarios" in config:
        raise InvalidRequest(("body", "source"), "Give either source or environment.config.scenarios.")
    return {**config, "scenarios": {"sessions": source.sessions}}


def _max_turns(request: LearnLoopRequest) -> int | None:
    if request.depth is None:
        return request.max_turns
    if request.graph is None:
        raise InvalidRequest(("body", "depth"), "depth can only be given with graph; use max_turns.")
    if request.max_turns is not None:
        raise InvalidRequest(("body", "depth"), "depth and max_turns mean the same; give only one of them.")
    return request.depth
