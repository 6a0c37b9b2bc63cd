"""What the front and a worker say to each other, and what carries it.

The front has the HTTP API, the registry and the tokenizers; each worker has an engine on a device of its own. A worker
does not know how its messages come: by a pipe of this machine (`local.py`) or in another way to another one. All
messages can be pickled. Files are named by their paths, so the data directory must be the same for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Protocol

from training.engine.computing import BusySeconds, Steps
from training.engine.registry.checkpoints import Checkpoint
from training.engine.registry.model_record import ModelRecord, Target
from training.engine.reproducibility import Reproducibility
from training.engine.sampling.figures import SamplingFigures
from training.engine.sampling.requests import SampleRequest
from training.engine.trainer.grpo_step import Progress


class LinkClosed(Exception):
    """The other side has ended."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is to be. Its environment is the front's; on a GPU it sees one device, which is its own."""

    number: int
    """From 0; a worker that is started again keeps it."""
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
    train_threads: int | None
    fp8_training: bool = False


# From the front to a worker.


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model as the front's registry has it."""

    record: ModelRecord
    newest: Checkpoint


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """The trainers that take a step together, and where they find each other."""

    rank: int
    size: int
    host: str | None
    """The address under which the others reach this one; None: the one that its machine's name has."""
    rendezvous: str
    """A URL for `torch.distributed.rendezvous`, without its query; another one for each group that is made."""


@dataclass(frozen=True, slots=True)
class SampleAsked:
    """Answered with a Sample. `grammar` is the text of the request's grammar, which is compiled where it is used."""

    target: Target
    request: SampleRequest
    grammar: str | None
    streamed: bool
    """Whether its tokens are told as they come."""


@dataclass(frozen=True, slots=True)
class TrainingAsked:
    """Answered with a Trained."""

    steps: Steps
    model: KnownModel
    group: TrainingGroup | None
    """None: it trains alone."""


@dataclass(frozen=True, slots=True)
class CheckAsked:
    """Answered with a Reproducibility."""

    model: KnownModel


@dataclass(frozen=True, slots=True)
class ForgetAsked:
    """Answered with None, once nothing of a model, or of some of its checkpoints, is in memory."""

    record: ModelRecord
    steps: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Something to do. `number` is not used twice for the same worker."""

    number: int
    what: SampleAsked | TrainingAsked | CheckAsked | ForgetAsked


@dataclass(frozen=True, slots=True)
class Cancel:
    """What was asked under that number is not wanted any more. It is answered all the same, if it was not yet."""

    number: int


ToWorker = Ask | Cancel

# From a worker to the front.


@dataclass(frozen=True, slots=True)
class Trained:
    """How a training ended on one worker. `written` is the new checkpoint, of the trainer that wrote it."""

    step: int
    trained: bool
    metrics: dict[str, float]
    written: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Failed:
    """An exception, taken apart: those with arguments of their own cannot be pickled as they are."""

    kind: type[Exception]
    arguments: tuple[object, ...]
    fields: dict[str, object]

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """The parts of an exception; of one that cannot be taken apart, what it says."""
        made = cls(type(error), error.args, dict(vars(error)))
        try:
            ForkingPickler.dumps(made)  # as the connection does
        except Exception:  # whatever its arguments raise
            return cls(RuntimeError, (f"{type(error).__name__}: {error}",), {})
        return made

    @property
    def error(self) -> Exception:
        """The exception again."""
        error = self.kind.__new__(self.kind, *self.arguments)
        vars(error).update(self.fields)
        return error


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a streamed sample with their log-probabilities, in order."""

    number: int
    tokens: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Progressed:
    """A training has come further; the first says that it has begun."""

    number: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of that which was asked."""

    number: int
    outcome: object
    """As the question's docstring says, or Failed."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """How a worker is."""

    sampling: SamplingFigures
    busy_seconds: BusySeconds
    loaded: Sequence[str]
    """Keys of the weights that it has in memory to be sampled."""
    reproducibility: Reproducibility | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker has to say, at least every `HEARTBEAT_S` seconds; the first one says that it is ready."""

    messages: Sequence[Tokens | Progressed | Answer]
    figures: WorkerFigures


HEARTBEAT_S = 1.0


class WorkerEnd(Protocol):
    """The worker's end of a link. `receive` and `send` are each called by one thread."""

    def receive(self) -> ToWorker:
        """The next message, waited for. Raises LinkClosed when the front has ended, or wants the worker to."""

    def send(self, report: Report) -> None:
        """May wait. Raises LinkClosed."""


class FrontEnd(Protocol):
    """The front's end of a link to a worker that was started. `receive` and `send` are each called by one thread."""

    @property
    def place(self) -> str:
        """Where the worker is, for people: a process id, a machine's name."""

    @property
    def host(self) -> str | None:
        """The address under which other workers reach it; None: the one that its machine's name has."""

    def receive(self) -> Report:
        """The next report, waited for. Raises LinkClosed when the worker has ended."""

    def send(self, message: ToWorker) -> None:
        """May wait. Raises LinkClosed."""

    def end(self) -> None:
        """End the worker, whatever it does, and wait until it has ended; nothing if it has. From any thread."""


class Placement(Protocol):
    """Where workers run."""

    def start(self, spec: WorkerSpec) -> FrontEnd:
        """Start a worker, which runs `worker.serve(spec, its WorkerEnd)`. Called from any thread; may wait.

        Raises OSError if there is no place for it now.
        """

    def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
        """A new place where these trainers can find each other: a URL as TrainingGroup has it."""

    def close(self) -> None:
        """Called once at the end, when all workers have been ended."""
