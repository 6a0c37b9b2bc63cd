"""What the learn loop asks of compute: a policy to sample from and to train, whatever stands behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from environment.base import Json

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A trainable model by name. Registering the same project and name again continues it."""

    project: str
    name: str
    base_model: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one checkpoint is sampled by any OpenAI client."""

    base_url: str
    api_key: str = field(repr=False)
    model: str
    remembers: bool = False
    """It keeps the sampled ids of a conversation between its turns, and loses them when it restarts."""
    tells_token_ids: bool = False
    """Asked for `return_token_ids` it says which token ids a prompt had, as vLLM does; and it takes those of earlier
    replies back with their messages, so that it need not remember them."""


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """One GRPO step from the policy's step `expected_step`; `options` are named in `train_options.py`."""

    groups: "Sequence[TrajectoryGroup]"
    learning_rate: float
    expected_step: int
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SupervisedRequest:
    """Supervised steps from the policy's step `expected_step`, one for each batch, that make one checkpoint.

    `demonstrations` and `held_out` are conversations in OpenAI's form for fine-tuning, each with an `id` for messages.
    """

    demonstrations: Sequence[Mapping[str, Json]]
    held_out: Sequence[Mapping[str, Json]]
    batch_size: int
    learning_rates: Sequence[float]
    """One for each batch."""
    expected_step: int


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """`step` is the policy's step after training; `metrics` are the backend's own figures."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reproducibility:
    """Whether sampling and training with the same seed give the same weights, bit for bit, and why."""

    reproducible: bool
    reason: str
    fingerprint: str | None = None
    """Hash of all that decides what the policy's newest checkpoint samples, besides the requests; None: not known."""


class BackendUnavailable(Exception):
    """The backend cannot be reached or refused to start. Worth a retry."""


class NotAccepted(BackendUnavailable):
    """A training was requested, and the backend surely has not begun it."""


class JobForgotten(BackendUnavailable):
    """The backend no longer knows the job; the policy's step shows whether it landed."""


class BackendRefused(Exception):
    """The backend refuses our credentials; a retry would not help."""


class TrainingFailed(Exception):
    """The backend accepted the training job and reports that it failed."""


class StepConflict(Exception):
    """The policy is at another step than the train request expected: another client trained it."""


class Policy(Protocol):
    """One trainable model on one backend. Its training is a job that goes on if the client dies, and can be found again
    by its id."""

    settle_timeout_s: float
    """How long a training whose job id never came back may take to land, in seconds. 0: the backend trains from the
    expected step only, so that asking again is safe."""

    @property
    def reproducibility(self) -> Reproducibility:
        """What the backend said of it when the model was registered."""

    async def step(self) -> int:
        """The newest checkpoint's step; 0 for a new model."""

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Where the checkpoint of that step (None: the newest) is sampled."""

    async def submit(self, request: TrainRequest) -> str:
        """Ask for one GRPO step; returns the job's id.

        Raises NotAccepted if it surely was not begun, StepConflict, BackendUnavailable, BackendRefused, or ValueError
        for bad options.
        """

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        """Wait for the end of the job, which trains from that step.

        Raises TrainingFailed, StepConflict, BackendUnavailable, or JobForgotten.
        """

    async def metrics(self, step: int) -> dict[str, float]:
        """The backend's own figures of the training that led to that step; none if it does not keep them."""

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        """Delete all checkpoints but these and the newest; returns the deleted steps."""


@runtime_checkable
class SupervisedPolicy(Policy, Protocol):
    """A policy that also learns from demonstrations."""

    async def submit_supervised(self, request: SupervisedRequest) -> str:
        """As Policy.submit, for supervised steps."""

    async def follow(
        self, job_id: str, expected_step: int, report: Callable[[int, int], None] | None = None
    ) -> TrainOutcome:
        """As Policy.follow; `report` is told how many of how many optimizer steps are done."""


class Backend(Protocol):
    """Where policies live."""

    name: str

    async def register(self, model: ModelSpec) -> Policy:
        """The policy of that model, made from its base model if it is new."""

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        """The steps of that model which training can continue from; none if there is no such model."""

    async def delete(self, model: ModelSpec) -> None:
        """Delete the model with all its checkpoints; nothing happens if there is none of that project and name."""

    async def close(self) -> None:
        """Close the connections."""
