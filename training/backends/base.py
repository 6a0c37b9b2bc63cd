"""The interface between the learn loop and compute: a policy to sample from and to train, on any backend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from learnloop_service.environment.base import Json
from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.protocol.model_facts import MeasuredToken, Reproducibility
from learnloop_service.training.protocol.tool_formats.formats import ToolFormat
from learnloop_service.training.tuning import Tuning

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup


_NAMED = 20
"""Number of demonstrations that a sentence names."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A trainable model by name. Registering an existing project and name continues that model."""

    project: str
    name: str
    base_model: str
    tuning: Tuning | None = None
    """Which part of it is trained; None leaves that to the backend. Only `TuningBackend` takes it."""
    enable_thinking: bool | None = None
    """The switch of that name in its chat template; None leaves it to the template. Only `TuningBackend` takes it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where any OpenAI client can sample one checkpoint."""

    base_url: str
    api_key: str = field(repr=False)
    model: str
    remembers: bool = False
    """Whether it keeps the sampled token ids of a conversation between turns. They are lost when it restarts."""
    tells_token_ids: bool = False
    """Whether it supports `return_token_ids`, like vLLM: it returns the token ids of the prompt, and accepts those of
    earlier replies with their messages, so it need not keep the conversation."""


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """One GRPO step from the policy's step `expected_step`; `train_options.py` lists the `options`."""

    groups: "Sequence[TrajectoryGroup]"
    learning_rate: float
    expected_step: int
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SupervisedRequest:
    """Supervised steps from the policy's step `expected_step`, one per batch, that produce one checkpoint.

    `demonstrations` and `held_out` are conversations in OpenAI's fine-tuning format, each with an `id` for messages.
    """

    demonstrations: Sequence[Mapping[str, Json]]
    held_out: Sequence[Mapping[str, Json]]
    batch_size: int
    learning_rates: Sequence[float]
    """One per batch."""
    expected_step: int


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The return to the checkpoint `step`, whose weights become those of the step after the policy's."""

    step: int


StepRequest = TrainRequest | SupervisedRequest | RestoreRequest


@dataclass(frozen=True, slots=True)
class Overlong:
    """The demonstrations that have more tokens than the model's context, of `total`. Its text is a sentence."""

    total: int
    context: int
    tokens: Mapping[int, int] = field(default_factory=dict)
    """Number of tokens of each of them, by its index among all demonstrations."""

    def name(self, index: int) -> str:
        """Return how a sentence names the demonstration with that index."""
        return f"demonstration {index + 1} ({self.tokens[index]:,} tokens)"

    def __str__(self) -> str:
        named = ", ".join(map(self.name, sorted(self.tokens)[:_NAMED]))
        more = f" and {len(self.tokens) - _NAMED:,} others" if len(self.tokens) > _NAMED else ""
        return (
            f"{len(self.tokens):,} of {self.total:,} demonstrations are longer than the model's context of "
            f"{self.context:,} tokens, and are left out: {named}{more}."
        )


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """The result of a training: `step` is the policy's step after it, and `metrics` are the backend's."""

    step: int
    metrics: Mapping[str, float]


class BackendUnavailable(Exception):
    """The backend cannot be reached or refused to start. A retry can succeed."""


class NotAccepted(BackendUnavailable):
    """The backend certainly did not begin the requested training."""


class JobForgotten(BackendUnavailable):
    """The backend no longer knows the job. The policy's step shows whether it took effect."""


class BackendRefused(Exception):
    """The backend rejects our credentials, so a retry would not help."""


class TrainingInterrupted(BackendUnavailable):
    """The training job ended without a checkpoint, for a reason that can pass (a full disk). The job stays failed;
    another request can succeed."""


class TrainingFailed(Exception):
    """The backend accepted the training job and reports that it failed."""


class TrainingStalled(TrainingFailed):
    """The training job sent no event for too long. It can still take effect."""


class StepConflict(Exception):
    """The policy is not at the step that the train request expected, because another client trained it."""


class Policy(Protocol):
    """One trainable model on one backend. Training is a job that continues if the client dies, and can be found by its
    id."""

    settle_timeout_s: float
    """How long a training whose job id was never received can take to take effect, in seconds. 0 if the backend trains
    only from the expected step, so that repeating the request is safe."""

    @property
    def reproducibility(self) -> Reproducibility:
        """Whether samples and training are reproducible, as the backend reported when the model was registered."""

    async def step(self) -> int:
        """Return the step of the newest checkpoint; 0 for a new model."""

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Return where the checkpoint of a step (None for the newest) is sampled."""

    async def submit(self, request: TrainRequest) -> str:
        """Request one GRPO step, and return the job's id.

        Raises NotAccepted if it certainly did not begin, StepConflict, BackendUnavailable, BackendRefused, or
        ValueError for bad options.
        """

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        """Wait for a job that trains from `expected_step` to end.

        Raises TrainingFailed, TrainingStalled, TrainingInterrupted, StepConflict, BackendUnavailable, or JobForgotten.
        """

    async def metrics(self, step: int) -> dict[str, float]:
        """Return the backend's metrics of the training that led to `step`; empty if it does not keep them."""

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        """Delete all checkpoints except those in `keep` and the newest, and return the deleted steps."""


@runtime_checkable
class StoringBackend(Protocol):
    """A backend that knows the disk that it writes checkpoints to."""

    async def free_bytes(self) -> int | None:
        """Return how many bytes are free there; None if it cannot tell. Raises BackendUnavailable."""


@runtime_checkable
class SupervisedPolicy(Policy, Protocol):
    """A policy that can also be trained on demonstrations."""

    async def submit_supervised(self, request: SupervisedRequest) -> str:
        """Like Policy.submit, for supervised steps."""

    async def follow(
        self, job_id: str, expected_step: int, report: Callable[[int, int], None] | None = None
    ) -> TrainOutcome:
        """Like Policy.follow; `report` is called with the finished and the total number of optimizer steps."""


OnTrained = Callable[[TrainOutcome], None]
"""Gets the outcome of a training when its weights can be sampled. Their checkpoint may still be being written."""


@runtime_checkable
class EarlyPolicy(Policy, Protocol):
    """A policy whose next step can be sampled before its checkpoint is written. `follow` takes a callback `trained` and
    returns when the checkpoint is durable; if it raises, the weights that were sampled are lost."""

    samples_early: bool


@runtime_checkable
class RestoringPolicy(Policy, Protocol):
    """A policy that can go back to an earlier checkpoint."""

    async def submit_restore(self, step: int, expected_step: int) -> str:
        """Like Policy.submit: request that the weights and the optimizer's state of `step` become those of the step
        after `expected_step`."""


@runtime_checkable
class CountingPolicy(Policy, Protocol):
    """A policy that counts the tokens of demonstrations."""

    async def overlong(self, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
        """Return which of the demonstrations are too long to train on. Raises BackendUnavailable, or ValueError if
        they are refused."""


@runtime_checkable
class ReportingPolicy(Policy, Protocol):
    """A policy that reports what its weights are."""

    @property
    def base_model(self) -> str:
        """The base model that the weights were first made from."""

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls."""

    async def weights_sha256(self, step: int) -> str | None:
        """Return a hash of the newest checkpoint's weights; None if it is not of that step, or if hashes are not
        reported. Raises BackendUnavailable."""

    async def measured(self, step: int) -> Sequence[MeasuredToken]:
        """Return tokens at which the training of a step was measured; none if they are not known. Raises
        BackendUnavailable."""

    async def logprobs(self, step: int, token_ids: Sequence[Sequence[int]]) -> Sequence[float | None]:
        """Return the log-probability that the sampler of a step gives to the last token of each sequence; None for
        unlikely tokens. Raises BackendUnavailable."""


@runtime_checkable
class ScoringPolicy(Policy, Protocol):
    """A policy that gives the exact log-probabilities of recorded tokens."""

    async def reply_logprobs(
        self, step: int, conversation: Sequence[Mapping[str, Json]], tools: Sequence[Json], replies: Sequence[int]
    ) -> Sequence[float]:
        """Return the log-probabilities that the checkpoint of a step gives to the sampled tokens of replies, one after
        the other, each given everything before it.

        `conversation` has messages and choices as ART dumps them, and `replies` are indices of choices in it. Raises
        BackendUnavailable, or ValueError if the backend refuses the conversation.
        """

    async def score_sequences(self, step: int, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Return the log-probabilities that the checkpoint of a step gives to the sampled tokens of each sequence.
        Raises BackendUnavailable, or ValueError if the backend refuses a sequence."""


class Backend(Protocol):
    """A place where policies are sampled and trained."""

    name: str

    async def register(self, model: ModelSpec) -> Policy:
        """Return the policy of a model, creating it from its base model if it is new."""

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        """Return the steps of a model from which training can continue; empty if there is no such model."""

    async def delete(self, model: ModelSpec) -> None:
        """Delete a model and all its checkpoints, if it exists."""

    async def close(self) -> None:
        """Close the connections."""


@runtime_checkable
class CountingBackend(Backend, Protocol):
    """A backend that counts the tokens of demonstrations."""

    async def overlong(self, model: str, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
        """Return which of the demonstrations are too long to train a model from this base or checkpoint on. Raises
        BackendUnavailable, or ValueError if they are refused."""


@runtime_checkable
class TuningBackend(Backend, Protocol):
    """A backend that trains the part of a model that it is asked to."""

    async def tuning(self, project: str, name: str) -> Tuning | None:
        """Return which part of a model is trained; None if there is no such model. Raises BackendUnavailable."""
