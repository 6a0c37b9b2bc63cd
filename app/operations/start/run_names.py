"""Names for runs that were given none: the settings of the request that differ from what the run would get anyway."""

from collections.abc import Mapping

from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.settings_by_path import by_path
from learnloop_service.app.operations.start.run_plan import RunPlan
from learnloop_service.app.schemas.run_request import ForkRequest, LearnLoopRequest
from learnloop_service.app.settings import Settings
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.bases.defaults import defaults_of

_PHRASES = {
    "environment.name": "{}",
    "model.base_model": "{}",
    "model.tuning.mode": "{}",
    "model.tuning.rank": "rank {}",
    "judge.name": "judge {}",
    "agent.name": "agent {}",
    "learning_rate": "lr {}",
    "groups_per_iteration": "group",
    "rollouts_per_group": "rollout",
    "iterations": "iteration",
    "max_turns": "turn",
    "max_completion_tokens": "{} tokens a turn",
    "temperature": "temperature {}",
    "warmup_iterations": "warm-up {}",
    "warm_start.demonstrations.dataset": "demonstrations {}",
    "warm_start.demonstrations.oracle": "demonstration",
    "warm_start.epochs": "epoch",
    "pipeline.max_staleness": "staleness {}",
    "seed": "seed {}",
}
"""Settings that a name mentions, in this order, each with a text around its value or the noun that it counts. Those of
environments and judges are not among them: they can be secret, and names are shown where settings are not."""
_MOST = 4
"""Most settings that a name mentions. The seed, which is the last one, is always among them."""
_LONGEST = 30
"""Characters of a setting; a data set's or a base model's name can be longer."""
_BETWEEN = " · "


def usual_name(request: LearnLoopRequest, plan: RunPlan, settings: Settings) -> str | None:
    """Return a name such as `lr 1e-12 · seed 4`. None if the model was given a name, by which the run is then called.

    The request is the one that was sent, and the plan what became of it.
    """
    if request.model.name is not None:
        return None
    assert plan.base is not None
    usual = by_path(LearnLoopRequest().model_dump()) | {"model.base_model": settings.art_base_model}
    filled_in = defaults_of(plan.base, after_demonstrations=plan.warm_start is not None)
    usual |= {path: default.value for path, default in filled_in.items()}
    requested = by_path(request.model_dump(exclude_unset=True)) | {"environment.name": plan.environment.name}
    phrases = _phrases(requested, usual)
    return _BETWEEN.join(phrases or [plan.environment.name, "usual settings"])


def fork_name(request: ForkRequest, parent: Run, step: int) -> str | None:
    """Return a name such as `fork at step 12 · lr 0.001`, as `usual_name` does: what differs from the parent."""
    if request.model.name is not None:
        return None
    phrases = _phrases(by_path(request.model_dump(exclude_unset=True)), by_path(parent.request))
    return _BETWEEN.join([f"fork at step {step}", *phrases])


def _phrases(requested: Mapping[str, Json], usual: Mapping[str, Json]) -> list[str]:
    """Return the requested settings that are not the usual ones, in words."""
    changed = {
        path: requested[path]
        for path in _PHRASES
        if requested.get(path) is not None and requested[path] != usual.get(path)
    }
    mentioned = [*list(changed)[: _MOST - 1], *list(changed)[_MOST - 1 :][-1:]]
    return [_phrase(_PHRASES[path], changed[path]) for path in mentioned]


def _phrase(template: str, value: Json) -> str:
    return (
        counted(value, template) if "{}" not in template and isinstance(value, int) else template.format(_short(value))
    )


def _short(value: Json) -> str:
    """Return a number without superfluous zeros, or the last part of a name such as `learnloop/tiny`."""
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value).rpartition("/")[2][:_LONGEST]
