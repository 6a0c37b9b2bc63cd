"""What a new run has to know of its base model: which one it is, and which layers its files have."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.app.backends import base_of
from learnloop_service.app.model_registry.resolver import base_models
from learnloop_service.app.operations.start.run_plan import RunPlan
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.training.bases.defaults import BaseModelFacts
from learnloop_service.training.bases.files import tensor_shapes
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.tuning import Tuning

_LONGEST_CHAIN = 100
"""Maximum number of runs that are followed from a checkpoint to its base model."""


@dataclass(frozen=True, slots=True)
class Root:
    """The base model that the weights of a run's model come from."""

    base_model: str
    """Name of the base model; name of a checkpoint if the run that made it was deleted."""
    tuning: Tuning | None
    """The tuning that was asked for."""
    is_new: bool
    """Whether no run has trained the model, and it starts from the base model itself."""
    base: BaseModelFacts
    """What is known of the base model."""


async def root_of(resources: Resources, plan: RunPlan) -> Root:
    """Return where the weights of the run's model come from."""
    settings, queries = resources.settings, RunQueries(resources.database)
    name, tuning, is_new = plan.model.base_model, plan.model.tuning, True
    model = None if plan.has_generated_name else plan.model_name
    for _ in range(_LONGEST_CHAIN):
        if model is not None and (first := await queries.first_model(plan.backend, model.project, model.name)):
            name, tuning, is_new = first.base_model, tuning or first.tuning, False
        model = None if name in base_models(settings) else checkpoint_of(name)
        if model is None:
            break
        is_new = False
    return Root(name, tuning, is_new, await asyncio.to_thread(base_of, settings, plan.backend, name, tuning))


def checkpoint_of(name: str) -> ModelName | None:
    """Return the checkpoint or model that a base model's name stands for, if any."""
    try:
        return ModelName.parse(name)
    except ValueError:
        return None


def missing_modules(directory: Path, names: Sequence[str]) -> list[str]:
    """Return the names that no linear layer of a base model's files has. Reads files: call it in a thread."""
    shapes = tensor_shapes(directory) or {}
    layers = [name.removesuffix(".weight") for name, shape in shapes.items() if name.endswith(".weight") and shape[1:]]
    return [name for name in names if not any(f".{layer}".endswith(f".{name}") for layer in layers)]
