"""What samples and trains, as the HTTP API sees it: one engine on a thread beside it, or several in workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from training.engine.engine import Engine, Training, TrainResult
from training.engine.registry.model_record import ModelRecord, Target
from training.engine.registry.tuning import Tuning
from training.engine.reproducibility import Reproducibility
from training.engine.sampling.figures import SamplingFigures
from training.engine.sampling.requests import OnToken, Sample, SampleRequest
from training.engine.trainer.grpo_loss import TrainOptions
from training.engine.trainer.grpo_step import Progress
from training.engine.trainer.sft import Example, SftOptions
from training.engine.trainer.trajectories import Group


class EngineStopped(Exception):
    """The engine is shutting down; the work was not finished."""


class WorkerLost(Exception):
    """A worker ended before it had answered, or none is up."""


class ModelDeleted(Exception):
    """The model of a training job was deleted before the job was done."""


@dataclass(slots=True)
class BusySeconds:
    """Wall time that an engine has spent at work since it started; what is left it waited."""

    sampling: float = 0.0
    training: float = 0.0


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model that is asked for; see Registry.create."""

    project: str | None
    name: str | None
    base_model: str
    entity: str | None = None
    return_existing: bool = False
    tuning: Tuning | None = None


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """One GRPO step; see Engine.train."""

    model_id: str
    groups: Sequence[Group]
    options: TrainOptions
    expected_step: int | None = None

    def start(self, engine: Engine) -> Training:
        """The training."""
        return engine.train(self.model_id, self.groups, self.options, expected_step=self.expected_step)


@dataclass(frozen=True, slots=True)
class SupervisedSteps:
    """Supervised steps on conversations; see Engine.train_supervised."""

    model_id: str
    examples: Sequence[Example]
    options: SftOptions
    held_out: Sequence[Example] = ()
    expected_step: int | None = None

    def start(self, engine: Engine) -> Training:
        """The training."""
        return engine.train_supervised(
            self.model_id, self.examples, self.options, held_out=self.held_out, expected_step=self.expected_step
        )


class Steps(Protocol):
    """What is to be trained: one of the above. It can be pickled."""

    @property
    def model_id(self) -> str: ...

    @property
    def expected_step(self) -> int | None:
        """The step that the model must be at; None: whichever it is at."""

    def start(self, engine: Engine) -> Training: ...


@dataclass(slots=True)
class TrainingTask:
    """A training that waits or runs. The callbacks are called on whatever thread computes."""

    steps: Steps
    on_start: Callable[[], None]
    on_progress: Callable[[Progress], None]
    on_end: Callable[[TrainResult | Exception], None]

    @property
    def model_id(self) -> str:
        """Of the model that is trained."""
        return self.steps.model_id


class Computing(Protocol):
    """Samples and trains the models of a registry. Use from the event loop."""

    def start(self) -> None: ...

    async def close(self) -> None:
        """Stop after the piece of work at hand; whatever is unfinished ends with EngineStopped."""

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """One sample. `on_token` is called on the event loop. Cancelling the caller cancels the request."""

    def train(self, task: TrainingTask) -> None:
        """Queue a training; they run one after the other, in this order."""

    async def create_model(self, model: NewModel) -> ModelRecord:
        """A new model; raises what Registry.create does."""

    async def check(self, model_id: str) -> Reproducibility:
        """See Engine.check."""

    async def delete_model(self, model_id: str) -> None:
        """Delete a model; its trainings end with ModelDeleted. Raises UnknownModel."""

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        """See Registry.delete_checkpoints."""

    @property
    def sampling(self) -> SamplingFigures:
        """How busy sampling is."""

    @property
    def busy_seconds(self) -> BusySeconds: ...

    @property
    def train_steps(self) -> int:
        """Training jobs that were done."""

    @property
    def reproducibility(self) -> Reproducibility | None:
        """That of all models that were loaded so far; None before the first."""

    @property
    def details(self) -> Mapping[str, Any]:
        """What `/health` tells further of what computes."""
