"""Which call a request is: a new one, or one that was begun before. A pure function of what is recorded.

Within an attempt a request that is made again is another sample on purpose: it is the next *occurrence* of its digest.
It is the same call where the reply to that did not arrive and nobody works on it (the client or the service died),
where the client says that it repeats itself, or where it brings the Idempotency-Key of the call. A new attempt counts
from 0, and so is given what earlier ones were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Holder(Enum):
    """Who samples a call, or sends its answer."""

    NOBODY = "nobody"
    US = "us"
    """This process."""
    OTHER = "other"
    """Another process, as far as one can tell: one that died is found out after a few seconds."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call with the digest of the request."""

    number: int
    occurrence: int
    seed: int
    answered: bool
    holder: Holder
    use: int | None
    """Number of the request by which this attempt made it; None: it did not."""
    delivered: bool
    """Whether the reply to this attempt's request arrived, as far as one knows."""
    idempotency_key: str | None
    """Of this attempt's request."""

    @property
    def is_abandoned(self) -> bool:
        """Whether this attempt's request was cut off, so that the same one asks for the same again."""
        return not (self.answered and self.delivered) and self.holder is Holder.NOBODY


@dataclass(frozen=True, slots=True)
class Repetition:
    """What a client says of a request."""

    is_retry: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The recorded answer of that call is the reply."""

    occurrence: int
    number: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The call is sampled, again if it has a number."""

    occurrence: int
    number: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody works on the call, or may be dead: look again in a moment."""


Decision = Answered | Begun | Wait


def decide(calls: Sequence[RecordedCall], asked: Repetition) -> Decision:
    """`calls` are all of the session with the request's digest, in the order of their occurrence."""
    used = [call for call in calls if call.use is not None]
    repeated = _repeated(used, asked)
    if repeated is None and any(_unsure(call, asked) for call in used):
        return Wait()
    occurrence = len(used) if repeated is None else repeated.occurrence
    call = calls[occurrence] if occurrence < len(calls) else None
    if call is None:
        return Begun(occurrence, None)
    if call.answered:
        return Answered(occurrence, call.number)
    return Begun(occurrence, call.number) if call.holder is Holder.NOBODY else Wait()


def restarts(calls: Sequence[RecordedCall], asked: Repetition) -> bool:
    """Whether a request that is the session's very first one begins a new attempt: all replies to it arrived."""
    used = [call for call in calls if call.use is not None]
    return bool(used) and all(call.answered and call.delivered for call in used) and asked == Repetition()


def _repeated(used: Sequence[RecordedCall], asked: Repetition) -> RecordedCall | None:
    """The call of this attempt that the request repeats; None: it is a further one."""
    if asked.idempotency_key is not None:
        return next((call for call in used if call.idempotency_key == asked.idempotency_key), None)
    plain = [call for call in used if call.idempotency_key is None]
    if (abandoned := next((call for call in plain if call.is_abandoned), None)) is not None:
        return abandoned
    return plain[-1] if asked.is_retry and plain else None


def _unsure(call: RecordedCall, asked: Repetition) -> bool:
    """Whether the request may repeat a call of a process that died: that is known soon."""
    return asked.idempotency_key is None and not call.answered and call.holder is Holder.OTHER
