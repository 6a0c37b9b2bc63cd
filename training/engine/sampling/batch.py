"""Queued and running requests as objects, and the running ones also as arrays over the cache's rows."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from learnloop_service.training.engine.sampling.masks import ReplyMasks
from learnloop_service.training.engine.sampling.requests import Done, OnToken, SampleRequest


@dataclass(slots=True, eq=False)
class Request:
    """A request that is queued or running. `ids` and `logprobs` are those that were sampled before it last lost its
    row."""

    number: int
    params: SampleRequest
    """The request as submitted."""
    seed: int
    max_tokens: int
    on_token: OnToken | None
    on_done: Done
    masks: ReplyMasks | None = None
    """Masks of the tokens that the reply's grammar allows, or None without a grammar."""
    call: str = field(init=False)
    row: int = -1
    cached_tokens: int | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    _tokens: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self.call = self.params.call or f"request {self.number}"

    @property
    def late(self) -> bool:
        """Whether the row skips decoding because its mask is still being computed."""
        return self.masks is not None and self.masks.late

    def tokens(self) -> npt.NDArray[np.int64]:
        """Return the prompt and the sampled tokens. The last one is the next to feed."""
        count = len(self.params.prompt) + len(self.ids)
        if self._tokens is None or len(self._tokens) != count:
            self._tokens = np.array((*self.params.prompt, *self.ids), dtype=np.int64)
        return self._tokens


class BatchState:
    """The data that sampling needs of each row's request, with one array per field so that a step costs no Python per
    token."""

    def __init__(self, rows: int, length: int) -> None:
        self.feed = np.zeros(rows, dtype=np.int64)
        self.prompts = np.zeros(rows, dtype=np.int64)
        """Lengths of the prompts in tokens."""
        self.produced = np.zeros(rows, dtype=np.int64)
        self.limits = np.zeros(rows, dtype=np.int64)
        self.seeds = np.zeros(rows, dtype=np.uint64)
        self.temperature = np.ones(rows, dtype=np.float32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.top_k = np.zeros(rows, dtype=np.int64)
        self.min_p = np.zeros(rows, dtype=np.float32)
        self.watched = np.zeros(rows, dtype=np.bool_)
        """Rows that are checked after every token."""
        self.constrained = np.zeros(rows, dtype=np.bool_)
        self.stops = np.full((rows, 1), -1, dtype=np.int64)
        self.ids = np.zeros((rows, length), dtype=np.int64)
        self.logprobs = np.zeros((rows, length), dtype=np.float32)

    def start(self, row: int, request: Request, feed: int) -> None:
        params, produced = request.params, len(request.ids)
        self.feed[row] = feed
        self.prompts[row] = len(params.prompt)
        self.produced[row] = produced
        self.limits[row] = request.max_tokens
        self.seeds[row] = request.seed % 2**64
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.top_k[row] = params.top_k
        self.min_p[row] = params.min_p
        self.constrained[row] = request.masks is not None
        self.watched[row] = bool(params.top_logprobs or params.stop or request.on_token or request.masks)
        missing = len(params.stop_ids) - self.stops.shape[1]
        if missing > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=-1)
        self.stops[row] = -1
        self.stops[row, : len(params.stop_ids)] = sorted(params.stop_ids)
        self.ids[row, :produced] = request.ids
        self.logprobs[row, :produced] = request.logprobs

    def take(self, old: "BatchState", keep: npt.NDArray[np.int64]) -> None:
        """Take over the kept rows of a smaller or differently ordered state."""
        for name, column in vars(old).items():
            if column.ndim == 1:
                getattr(self, name)[: len(keep)] = column[keep]
            elif name == "stops":
                self.stops = np.full((len(self.feed), column.shape[1]), -1, dtype=np.int64)
                self.stops[: len(keep)] = column[keep]
            else:
                getattr(self, name)[: len(keep), : column.shape[1]] = column[keep]

    def swap(self, one: int, other: int) -> None:
        length = int(max(self.produced[one], self.produced[other]))  # rows are as long as the model's context
        for column in vars(self).values():
            part = column if column.ndim == 1 or column is self.stops else column[:, :length]
            part[[one, other]] = part[[other, one]]
