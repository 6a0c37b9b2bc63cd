"""What a new run has to know of its base model: which one it is, and whether its tuning and learning rate suit it."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.operations.run_plan import RunPlan
from app.runs.queries import RunQueries
from app.schemas.run_request import LearnLoopRequest
from training.base_defaults import Base, factor_from_usual, usual_rate
from training.base_model_files import tensor_shapes
from training.protocol.model_name import ModelName
from training.tuning import Tuning

_LONGEST_CHAIN = 100
"""Maximum number of runs that are followed from a checkpoint to its base model."""


@dataclass(frozen=True, slots=True)
class Root:
    """Where the weights of a run's model were first made from."""

    base_model: str
    """Name of the base model. Of checkpoints whose runs were deleted, their own name."""
    tuning: Tuning | None
    """The tuning that was asked for."""
    is_new: bool
    """Whether no run has trained the model, and it starts from the base model itself."""


async def root_of(queries: RunQueries, plan: RunPlan, bases: Container[str]) -> Root:
    """Return where the weights of the run's model come from. `bases` are the names of base models."""
    name, tuning, is_new = plan.model.base_model, plan.model.tuning, True
    model = None if plan.has_generated_name else ModelName(plan.model.project, plan.model.name)
    for _ in range(_LONGEST_CHAIN):
        if model is not None and (first := await queries.first_model(plan.backend, model.project, model.name)):
            name, tuning, is_new = first.base_model, tuning or first.tuning, False
        model = None if name in bases else _checkpoint(name)
        if model is None:
            break
        is_new = False
    return Root(name, tuning, is_new)


def _checkpoint(name: str) -> ModelName | None:
    try:
        return ModelName.parse(name)
    except ValueError:
        return None


def missing_modules(directory: Path, names: Sequence[str]) -> list[str]:
    """Return the names that no linear layer of a base model's files has. Reads files: call it in a thread."""
    shapes = tensor_shapes(directory) or {}
    layers = [name.removesuffix(".weight") for name, shape in shapes.items() if name.endswith(".weight") and shape[1:]]
    return [name for name in names if not any(f".{layer}".endswith(f".{name}") for layer in layers)]


def temperature_warnings(request: LearnLoopRequest) -> list[str]:
    """Return a warning if the rollouts are sampled with another temperature than that of the log-probabilities."""
    if request.temperature == 1:
        return []
    return [
        f"The rollouts are sampled with a temperature of {request.temperature:g}, but training uses log-probabilities "
        "without it, which turns the gradient away from the exact one. Leave temperature out to train with 1."
    ]


def rate_warnings(request: LearnLoopRequest, base: Base) -> list[str]:
    """Return a warning if the request gives a learning rate that is far from the base's default."""
    given, usual = request.learning_rate, usual_rate(base)
    if given is None or factor_from_usual(given, usual, is_sized=base.is_sized) is None:
        return []
    much = "above" if given > usual else "below"
    return [f"The learning rate {given:g} is far {much} {usual:g}, which suits {base.name}."]
