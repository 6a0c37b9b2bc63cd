"""Checks that the backend can do what a run asks of it, and has the model that the run starts from."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import ScalarSelect

from learnloop_service.app.backends import connected, refusal, unusable_base_models
from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.model_registry.resolver import base_models
from learnloop_service.app.operations.start.base_model import checkpoint_of, missing_modules
from learnloop_service.app.operations.start.run_plan import RunPlan
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.queries import RunQueries, selected_engine
from learnloop_service.app.settings import Settings
from learnloop_service.training.backends.base import Backend, TuningBackend
from learnloop_service.training.backends.registry import every_traits, is_on_engine, traits
from learnloop_service.training.bases.files import TIED, tied_modules
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.protocol.tool_formats.chosen import template_text

_MODEL = ("body", "model")


@asynccontextmanager
async def reached(
    resources: Resources, backend: str, model: ModelName, undone: str | None = None
) -> AsyncIterator[Backend | None]:
    """Connect the backend that has the model, if this process can reach its engine. Raises like `connected`."""
    if resources.reaches(await RunQueries(resources.database).engine_of(backend, model.project, model.name)):
        async with connected(resources.connect, backend, undone) as there:
            yield there
    else:
        yield None


async def engine_for(resources: Resources, plan: RunPlan) -> str | ScalarSelect[str | None] | None:
    """Return the engine that must drive the run, None for any, or a query that finds it when the run is saved.

    Raises InvalidRequest if the backend cannot do what the plan says, or Unavailable while the engine cannot be asked.
    """
    settings, backend, model = resources.settings, plan.backend, plan.model
    _check_options(plan)
    await asyncio.to_thread(_check_thinking, plan, settings)
    if not is_on_engine(backend):
        # other backends have their own base models, so an unknown one is only noticed when the run starts
        return None
    if model.base_model in base_models(settings):
        await asyncio.to_thread(_check_base_model, model.base_model, settings)
        await _check_tuning(resources, plan, plan.model_name)
        return selected_engine(backend, model.project, model.name).scalar_subquery()
    source = checkpoint_of(model.base_model)
    if source is not None and source.project == model.project and await _has_checkpoint(resources, backend, source):
        await _check_tuning(resources, plan, source)
        return await RunQueries(resources.database).engine_of(backend, source.project, source.name)
    raise InvalidRequest(
        (*_MODEL, "base_model"),
        f"Unknown base model {model.base_model!r}. Available: {', '.join(sorted(base_models(settings)))}, "
        f"and checkpoints of project {model.project} as PROJECT/NAME@STEP.",
    )


async def _has_checkpoint(resources: Resources, backend: str, source: ModelName) -> bool:
    """Return whether a run can start from the checkpoint. If this process cannot reach its engine, any step is
    accepted, and a wrong one is noticed when the run starts."""
    async with reached(resources, backend, source, "The base model cannot be checked now") as there:
        return there is None or source.step in await there.checkpoints(source.project, source.name)


async def _check_tuning(resources: Resources, plan: RunPlan, model: ModelName) -> None:
    """Check that the existing model, if any, has the tuning that is asked for, and its base the modules."""
    requested, where, base_model = plan.model.tuning, (*_MODEL, "tuning"), plan.model.base_model
    if requested is None:
        return
    directory = resources.settings.base_models.get(base_model)
    if directory is not None:
        if tied := await asyncio.to_thread(tied_modules, directory, requested.target_modules):
            fault = TIED.format(base=base_model, names=", ".join(tied))
            raise InvalidRequest((*where, "target_modules"), fault)
        if lacking := await asyncio.to_thread(missing_modules, directory, requested.target_modules):
            fault = f"{base_model} has no linear layer named {', '.join(lacking)}."
            raise InvalidRequest((*where, "target_modules"), fault)
    async with reached(resources, plan.backend, model, "The model's tuning cannot be checked now") as there:
        tuning = await there.tuning(model.project, model.name) if isinstance(there, TuningBackend) else None
    if tuning is not None and not requested.equals(tuning):
        fault = f"The model {model.project}/{model.name} is trained {tuning}. Leave out model.tuning to keep that."
        raise InvalidRequest(where, fault)


def _check_options(plan: RunPlan) -> None:
    """Check that the backend can be used here, and takes the options that the request gives."""
    backend = plan.backend
    if (refused := refusal(backend, plan.model.base_model)) is not None:
        raise InvalidRequest(("body", "backend"), refused)
    backend_traits = traits(backend)
    for option in plan.train_options:
        if option not in (options := backend_traits.train_options):
            raise InvalidRequest(
                ("body", "train_options", option),
                f"The backend {backend} does not take {option}. Available: {', '.join(sorted(options))}.",
            )
    if plan.request.pipeline.max_staleness:
        _check_pipeline(plan)
    if plan.request.warm_start is not None and not backend_traits.trains_on_demonstrations:
        raise InvalidRequest(
            ("body", "warm_start"),
            f"The backend {backend} does not train on demonstrations; {_those('trains_on_demonstrations')} does. "
            "Leave out warm_start, or start from a base model that can do the task.",
        )
    if plan.model.tuning is not None and not backend_traits.takes_tuning:
        raise InvalidRequest(
            (*_MODEL, "tuning"),
            f"The backend {backend} decides itself which part of a model it trains; only {_those('takes_tuning')} "
            "takes it from the request. Leave out model.tuning.",
        )


def _those(trait: str) -> str:
    """Return the names of the backends that have a trait, for a message."""
    return " or ".join(name for name, backend in every_traits() if getattr(backend, trait))


def _check_pipeline(plan: RunPlan) -> None:
    """Check that rollouts can run ahead, and that their staleness is corrected."""
    if not traits(plan.backend).samples_while_training:
        raise InvalidRequest(
            ("body", "pipeline", "max_staleness"),
            f"The backend {plan.backend} samples and trains in turns, so that rollouts cannot run ahead of training: "
            f"set it to 0, or use {_those('samples_while_training')}.",
        )
    options = plan.train_options
    if options.get("precalculate_logprobs") and not options.get("truncated_importance_sampling"):
        raise InvalidRequest(
            ("body", "train_options", "precalculate_logprobs"),
            "With precalculate_logprobs the loss no longer sees that rollouts were sampled from an older policy "
            "(pipeline.max_staleness): leave it out, or set truncated_importance_sampling, too.",
        )


def _check_thinking(plan: RunPlan, settings: Settings) -> None:
    """Check that the base's chat template has the switch that the request sets. Reads files: call it in a thread. A
    checkpoint has the template of a base that was checked."""
    base, where = plan.model.base_model, (*_MODEL, "enable_thinking")
    if plan.model.enable_thinking is None:
        return
    if not traits(plan.backend).takes_tuning:
        fault = f"The backend {plan.backend} does not take enable_thinking; only {_those('takes_tuning')} does."
        raise InvalidRequest(where, fault)
    directory = settings.base_models.get(base)
    if base == TINY_BASE or (directory is not None and "enable_thinking" not in template_text(directory)):
        raise InvalidRequest(where, f"The chat template of {base} has no switch enable_thinking. Leave it out.")


def _check_base_model(name: str, settings: Settings) -> None:
    """Check that a base model can be used. The shipped one always can. Reads files: call it in a thread."""
    if name in settings.base_models and (fault := unusable_base_models(settings).get(name)) is not None:
        raise InvalidRequest((*_MODEL, "base_model"), f"The base model {name!r} cannot be used: {fault}")
