"""The sampling and training interface of the HTTP API, implemented by one engine on a thread or by several in worker
processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.engine.engine import Engine, Training, TrainResult
from learnloop_service.training.engine.registry.model_record import ModelRecord, NewModel, Target
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.sampling.requests import OnToken, Sample, SampleRequest
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.engine.trainer.sft import Example, SftOptions
from learnloop_service.training.engine.trainer.trajectories import Group
from learnloop_service.training.protocol.model_facts import Reproducibility


class EngineStopped(Exception):
    """The engine is shutting down, and the work was not finished."""


class WorkerLost(Exception):
    """A worker ended before it answered, or no worker is up."""


class ModelDeleted(Exception):
    """The model of a training job was deleted before the job finished."""


@dataclass(slots=True)
class BusySeconds:
    """Wall time in seconds that an engine has spent working since it started. The rest was idle."""

    sampling: float = 0.0
    training: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """One GRPO step; see Engine.train."""

    model_id: str
    groups: Sequence[Group]
    options: TrainOptions
    expected_step: int | None = None

    def start(self, engine: Engine) -> Training:
        """Start the training."""
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
        """Start the training."""
        return engine.train_supervised(
            self.model_id, self.examples, self.options, held_out=self.held_out, expected_step=self.expected_step
        )


@dataclass(frozen=True, slots=True)
class RestoredStep:
    """The return to an earlier checkpoint; see Engine.restore."""

    model_id: str
    step: int
    expected_step: int | None = None

    def start(self, engine: Engine) -> Training:
        """Start it."""
        return engine.restore(self.model_id, self.step, expected_step=self.expected_step)


@dataclass(frozen=True, slots=True)
class ScoredSequences:
    """The scoring of sequences by a checkpoint, which changes nothing; see Engine.score."""

    model_id: str
    target: Target
    sequences: Sequence[TokenSequence]
    expected_step: None = None

    def start(self, engine: Engine) -> Training:
        """Start it."""
        return engine.score(self.target, self.sequences)


class Steps(Protocol):
    """The steps of a training: one of the classes above. They can be pickled."""

    @property
    def model_id(self) -> str: ...

    @property
    def expected_step(self) -> int | None:
        """The step that the model must be at, or None for any."""

    def start(self, engine: Engine) -> Training: ...


@dataclass(slots=True)
class TrainingTask:
    """A training that is waiting or running. Its callbacks are called on the computing thread."""

    steps: Steps
    on_start: Callable[[], None]
    on_progress: Callable[[StepProgress], None]
    on_end: Callable[[TrainResult | Exception], object]

    @property
    def model_id(self) -> str:
        """The id of the model being trained."""
        return self.steps.model_id


class Computing(Protocol):
    """Samples and trains the models of a registry, for the event loop."""

    def start(self) -> None: ...

    async def close(self) -> None:
        """Stop after the current piece of work. Everything unfinished ends with EngineStopped."""

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """Return one sample. `on_token` is called on the event loop. Cancelling the caller cancels the request."""

    def train(self, task: TrainingTask) -> None:
        """Queue a training. Trainings run one after another in this order."""

    async def create_model(self, model: NewModel) -> ModelRecord:
        """Create a model. Raises the errors of Registry.create."""

    async def check(self, model_id: str) -> Reproducibility:
        """Check a model like Engine.check."""

    async def delete_model(self, model_id: str) -> None:
        """Delete a model. Its trainings end with ModelDeleted. Raises UnknownModel."""

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        """Delete checkpoints like Registry.delete_checkpoints."""

    @property
    def sampling(self) -> SamplingFigures:
        """Figures of sampling."""

    @property
    def busy_seconds(self) -> BusySeconds: ...

    @property
    def train_steps(self) -> int:
        """Number of training jobs that changed their model."""

    @property
    def reproducibility(self) -> Reproducibility | None:
        """The combined reproducibility of all models loaded so far, or None before the first."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Additional details for `/health`."""
