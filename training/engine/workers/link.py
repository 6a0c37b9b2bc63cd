"""The messages between the front and a worker, and the interface of what carries them.

The front has the HTTP API, the registry and the tokenizers; each worker has an engine with its own device. A worker
does not know how its messages arrive: through a pipe on this machine (`local.py`) or from another machine. All messages
can be pickled. They name files by path, so all processes must see the same data directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Protocol

from learnloop_service.training.engine.computing import BusySeconds, Steps
from learnloop_service.training.engine.devices import DeviceFigures
from learnloop_service.training.engine.engine import TrainResult
from learnloop_service.training.engine.registry.checkpoints import StoredCheckpoint
from learnloop_service.training.engine.registry.model_record import ModelRecord, Target
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.protocol.model_facts import Reproducibility


class LinkClosed(Exception):
    """The other side of the link has ended."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's configuration. It inherits the front's environment; on a GPU it sees a single device, which is
    reserved for it."""

    number: int
    """The worker's number, from 0, which survives restarts."""
    samples: bool
    trains: bool
    device: str
    """`cpu` or `cuda`."""
    data_dir: Path
    base_models: Mapping[str, Path]
    allowed_base_directories: Sequence[Path]
    slots: int
    cache_bytes: int | None
    micro_batch_tokens: int | None
    threads: int
    train_threads: int
    fp8_training: bool = False


# Messages from the front to a worker.


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model as the front's registry knows it."""

    record: ModelRecord
    newest: StoredCheckpoint


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """The trainers that take a step together, and where they meet."""

    rank: int
    size: int
    host: str | None
    """Address under which the others reach this trainer. None stands for the address of its machine's name."""
    rendezvous: str
    """URL for `torch.distributed.rendezvous` without its query, unique to each group."""


@dataclass(frozen=True, slots=True)
class SampleCommand:
    """Sample a reply; answered with a Sample. `grammar` is the text of the request's grammar, which the worker
    compiles."""

    target: Target
    request: SampleRequest
    grammar: str | None
    streamed: bool
    """Whether tokens are reported as they are sampled."""


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """Take a training step; answered with a Trained."""

    steps: Steps
    model: KnownModel
    group: TrainingGroup | None
    """The group to train with, or None to train alone."""


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """Check reproducibility; answered with a Reproducibility."""

    model: KnownModel


@dataclass(frozen=True, slots=True)
class ForgetCommand:
    """Drop a model or some of its checkpoints from memory; answered with None when that is done."""

    record: ModelRecord
    steps: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A command to a worker. `number` is unique among the worker's commands."""

    number: int
    what: SampleCommand | TrainingCommand | CheckCommand | ForgetCommand


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop working on the command of that number. If it has not been answered yet, it still will be."""

    number: int


ToWorker = Ask | Cancel

# Messages from a worker to the front.


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training on one worker. `written` is the new checkpoint on the trainer that wrote it."""

    result: TrainResult
    written: StoredCheckpoint | None


@dataclass(frozen=True, slots=True)
class Failed:
    """An exception taken apart, because exceptions with custom arguments cannot be pickled directly."""

    kind: type[Exception]
    arguments: tuple[object, ...]
    fields: dict[str, object]

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Take an exception apart. If that fails, only its text is kept."""
        failed = cls(type(error), error.args, dict(vars(error)))
        try:
            ForkingPickler.dumps(failed)  # as the connection will
        except Exception:  # anything that its arguments raise
            return cls(RuntimeError, (f"{type(error).__name__}: {error}",), {})
        return failed

    @property
    def error(self) -> Exception:
        """The exception, rebuilt."""
        error = self.kind.__new__(self.kind, *self.arguments)
        vars(error).update(self.fields)
        return error


@dataclass(frozen=True, slots=True)
class StreamedTokens:
    """Tokens of a streamed sample with their log-probabilities, in order."""

    number: int
    tokens: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress of a training. The first message reports that it has begun."""

    number: int
    progress: StepProgress


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer to a command."""

    number: int
    outcome: object
    """The outcome described in the command's docstring, or Failed."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """A worker's current state."""

    sampling: SamplingFigures
    busy_seconds: BusySeconds
    loaded: Sequence[str]
    """Keys of the weights that it has loaded for sampling."""
    reproducibility: Reproducibility | None
    devices: Sequence[DeviceFigures] = ()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's messages and figures, sent at least every `HEARTBEAT_S` seconds. The first report signals that the
    worker is ready."""

    messages: Sequence[StreamedTokens | Progressed | CommandAnswer]
    figures: WorkerFigures


HEARTBEAT_S = 1.0


class PipeEnd:
    """An end of a link through a pipe on this machine."""

    def __init__(self, pipe: "Connection[Any, Any]", other: str) -> None:
        """`other` names what is at the other end."""
        self._pipe = pipe
        self._closed = f"the {other} has ended"

    def receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise LinkClosed(self._closed) from error

    def send(self, message: ToWorker | WorkerReport) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise LinkClosed(self._closed) from error


class WorkerEnd(Protocol):
    """The worker's end of a link. `receive` and `send` are each called by one thread."""

    def receive(self) -> ToWorker:
        """Wait for the next message. Raises LinkClosed when the front has ended or wants the worker to end."""

    def send(self, report: WorkerReport) -> None:
        """Send a report, blocking if necessary. Raises LinkClosed."""


class FrontEnd(Protocol):
    """The front's end of a link to a started worker. `receive` and `send` are each called by one thread."""

    @property
    def location(self) -> str:
        """The worker's location for people to read: a process id or a machine's name."""

    @property
    def host(self) -> str | None:
        """Address under which other workers reach it. None stands for the address of its machine's name."""

    def receive(self) -> WorkerReport:
        """Wait for the next report. Raises LinkClosed when the worker has ended."""

    def send(self, message: ToWorker) -> None:
        """Send a message, blocking if necessary. Raises LinkClosed."""

    def end(self) -> None:
        """End the worker whatever it is doing and wait until it has ended. Does nothing if it has. Can be called from
        any thread."""


class Placement(Protocol):
    """Starts workers somewhere."""

    def start(self, spec: WorkerSpec) -> FrontEnd:
        """Start a worker that runs `worker.serve(spec, its WorkerEnd)`. Called from any thread; can block.

        Raises OSError if there is currently no capacity for it.
        """

    def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
        """Return a new meeting point for these trainers, a URL as described in TrainingGroup.

        Called from any thread; may wait. Raises LinkClosed when the first trainer has ended.
        """

    def close(self) -> None:
        """Release resources. Called once, after all workers have been ended."""
