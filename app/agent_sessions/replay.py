"""Which call a request is: a new one, or one that was begun before. A pure function of what is recorded.

Within an attempt a request that is made again is another sample on purpose: it is the next *occurrence* of its digest.
It is the same call where that was never answered and nobody works on it (the client or the service died), where the
client says that it repeats itself, or where it brings the Idempotency-Key of the call. A new attempt counts from 0, and
so is given what earlier ones were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Holder(Enum):
    """Who samples a call."""

    NOBODY = "nobody"
    US = "us"
    """This process."""
    OTHER = "other"
    """Another process, as far as one can tell: one that died is found out after a few seconds."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call with the digest of the request; `used` says whether this attempt made it."""

    number: int
    occurrence: int
    answered: bool
    holder: Holder
    used: bool
    idempotency_key: str | None
    """Of this attempt's request."""


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
    used = [call for call in calls if call.used]
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
    """Whether a request that is the session's very first one begins a new attempt: all that made it were answered."""
    used = [call for call in calls if call.used]
    return bool(used) and all(call.answered for call in used) and asked == Repetition()


def _repeated(used: Sequence[RecordedCall], asked: Repetition) -> RecordedCall | None:
    """The call of this attempt that the request repeats; None: it is a further one."""
    if asked.idempotency_key is not None:
        return next((call for call in used if call.idempotency_key == asked.idempotency_key), None)
    plain = [call for call in used if call.idempotency_key is None]
    abandoned = [call for call in plain if not call.answered and call.holder is Holder.NOBODY]
    if abandoned:
        return abandoned[0]
    return plain[-1] if asked.is_retry and plain else None


def _unsure(call: RecordedCall, asked: Repetition) -> bool:
    """Whether the request may repeat a call of a process that died: that is known soon."""
    return asked.idempotency_key is None and not call.answered and call.holder is Holder.OTHER
