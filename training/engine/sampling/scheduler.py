"""All sampling from one set of weights, or from several that can share a batch."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED

from learnloop_service.training.engine.sampling.admission import Admission
from learnloop_service.training.engine.sampling.batch import Request
from learnloop_service.training.engine.sampling.decoding import Decoding
from learnloop_service.training.engine.sampling.figures import Counts, SamplingFigures
from learnloop_service.training.engine.sampling.masks import wait_for
from learnloop_service.training.engine.sampling.occupancy import Occupancy
from learnloop_service.training.engine.weights.weights import Weights


class SamplingScheduler:
    """Cache, queue and batch of the requests for one or more keys. Driven by `step`."""

    def __init__(
        self,
        key: str,
        weights: Weights,
        slots: int,
        cache_bytes: int | None,
        decode: Callable[[Sequence[int]], str] | None,
        counts: Counts,
    ) -> None:
        """`cache_bytes` bounds the cache. None means CACHE_BYTES, or on a GPU half of the memory that is free when the
        cache is created. The scheduler adds to `counts`. The other arguments are those of `add`."""
        self._occupancy = Occupancy(slots, cache_bytes)
        self.add(key, weights, decode)
        self._admission = Admission(self._occupancy, slots, counts)
        self._decoding = Decoding(self._occupancy, counts)

    @property
    def weights(self) -> Weights:
        """The weights of any key, which differ in their adapters only."""
        return self._occupancy.weights

    def weights_of(self, key: str) -> Weights:
        """Return the weights of a key."""
        return self._occupancy.members[key].weights

    def add(self, key: str, weights: Weights, decode: Callable[[Sequence[int]], str] | None) -> None:
        """Sample requests for `key` from these weights, too, which can share a batch with those of the other keys.
        `decode` turns token ids into text."""
        self._occupancy.add(key, weights, decode)

    def rename(self, key: str, new: str) -> None:
        """Move idle weights, which were changed in place, to another key."""
        self._occupancy.members[new] = member = self._occupancy.members.pop(key)
        self._occupancy.rows.forget_all_of(member.number)

    def remove(self, key: str, reason: Exception) -> None:
        """End all requests for a key, and forget its conversations."""
        for request in self._occupancy.requests():
            if request.params.weights_key == key:
                self._occupancy.fail(request, reason)
        self._occupancy.rows.forget_all_of(self._occupancy.members.pop(key).number)

    @property
    def busy(self) -> bool:
        """Whether there are requests."""
        return bool(self._occupancy.waiting or self._occupancy.active or self._occupancy.filling)

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache can come to take, in bytes."""
        return self._occupancy.rows.bytes

    @property
    def load(self) -> SamplingFigures:
        """Figures of its conversations and its cache; the counters are 0."""
        waiting = len(self._occupancy.waiting) + len(self._occupancy.filling)
        rows = self._occupancy.rows
        return SamplingFigures(len(self._occupancy.active), waiting, rows.tokens, rows.capacity_tokens, rows.bytes)

    def can_decode(self, key: str) -> bool:
        """Whether replies of a key can be searched for stop strings."""
        return self._occupancy.members[key].decode is not None

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._occupancy.waiting.append(request)

    def cancel(self, number: int, reason: Exception) -> bool:
        """End the request of that number. Returns False if there is none."""
        for request in self._occupancy.requests():
            if request.number == number:
                self._occupancy.fail(request, reason)
                return True
        return False

    def take_cache(self, other: "SamplingScheduler") -> None:
        """Take over the memory of another scheduler's cache, whose conversations are forgotten. Both must be idle."""
        self._occupancy.rows.take(other._occupancy.rows)
        other.release()

    def release(self) -> None:
        """Forget all conversations and give back the cache's memory. The scheduler must be idle."""
        self._occupancy.ahead = None
        self._occupancy.rows.release()

    def step(self) -> None:
        """Prefill what waits, within a budget, then decode one token for every conversation that is ready. On a GPU a
        few prompts can wait for others while conversations are decoded."""
        occupancy = self._occupancy
        self._admission.step()
        if occupancy.ready_rows():
            self._decoding.step()
        elif not occupancy.filling:
            late = [request.masks for request in occupancy.requests() if request.masks and request.late]
            wait_for(late, FIRST_COMPLETED)
        occupancy.compact()
