"""Tracks which worker has which conversation in its cache."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

_CAPACITY = 10_000


class Conversations:
    """The most recently sampled conversations and the workers that sampled them. A prompt continues a conversation if
    it begins with all of its tokens. A mere shared beginning, such as a system message, ties prompts to no worker."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._workers: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Number of tokens and worker number, by the digest of the tokens."""
        self._lengths: Counter[int] = Counter()

    def remember(self, tokens: Sequence[int], worker: int) -> None:
        """Record that the worker now has a prompt and its reply in its cache."""
        key = blake2b(array("q", tokens).tobytes(), digest_size=16).digest()
        if key not in self._workers:
            self._lengths[len(tokens)] += 1
        self._workers[key] = len(tokens), worker
        self._workers.move_to_end(key)
        while len(self._workers) > self._capacity:
            self._forget(next(iter(self._workers)))

    def find(self, prompt: Sequence[int]) -> int | None:
        """Return the worker with the longest conversation that the prompt continues."""
        tokens = memoryview(array("q", prompt).tobytes())
        digest, begun, worker = blake2b(digest_size=16), 0, None
        for length in sorted(length for length in self._lengths if length <= len(prompt)):
            digest.update(tokens[8 * begun : 8 * length])
            begun = length
            remembered = self._workers.get(digest.copy().digest())
            worker = remembered[1] if remembered else worker
        return worker

    def forget(self, worker: int) -> None:
        """Drop all conversations of a worker, whose cache is lost."""
        for key in [key for key, (_, owner) in self._workers.items() if owner == worker]:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        length, _ = self._workers.pop(key)
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]
