"""Decides which call a request is: a new one, or one that was begun before. A pure function of what is recorded.

Repeating a request within an attempt normally asks for another sample: it is the next *occurrence* of its digest. It is
the same call if the earlier reply did not arrive and nothing works on the call (the client or the service died), if the
client marks it as a retry, or if it has the call's Idempotency-Key. A new attempt counts from 0 again, so it gets the
answers of earlier attempts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Holder(Enum):
    """The process that samples a call or sends its answer."""

    NONE = "none"
    US = "us"
    """This process."""
    OTHER = "other"
    """Another process, as far as is known. One that died is detected after a few seconds."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call with the request's digest."""

    number: int
    occurrence: int
    seed: int
    answered: bool
    holder: Holder
    use: int | None
    """Number of this attempt's request for the call; None if it has not made one."""
    delivered: bool
    """Whether the reply to this attempt's request arrived, as far as is known."""
    idempotency_key: str | None
    """Idempotency key of this attempt's request."""

    @property
    def is_abandoned(self) -> bool:
        """Whether this attempt's request was cut off, so that repeating it means the same call."""
        return not (self.answered and self.delivered) and self.holder is Holder.NONE


@dataclass(frozen=True, slots=True)
class Repetition:
    """What a client says about repeating a request."""

    is_retry: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """Reply with the call's recorded answer."""

    occurrence: int
    number: int


@dataclass(frozen=True, slots=True)
class Begun:
    """Sample the call. If it has a number, it was begun before."""

    occurrence: int
    number: int | None


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """The call is in progress, or its process has died. Check again in a moment."""


Decision = Answered | Begun | CallInProgress


def decide(calls: Sequence[RecordedCall], repetition: Repetition) -> Decision:
    """Decide which call the request is. `calls` are the session's calls with the request's digest, ordered by
    occurrence."""
    used = [call for call in calls if call.use is not None]
    repeated = _repeated(used, repetition)
    if repeated is None and any(_might_repeat(call, repetition) for call in used):
        return CallInProgress()
    occurrence = len(used) if repeated is None else repeated.occurrence
    call = calls[occurrence] if occurrence < len(calls) else None
    if call is None:
        return Begun(occurrence, None)
    if call.answered:
        return Answered(occurrence, call.number)
    return Begun(occurrence, call.number) if call.holder is Holder.NONE else CallInProgress()


def restarts(calls: Sequence[RecordedCall], repetition: Repetition) -> bool:
    """Whether repeating the session's very first request begins a new attempt. It does if all replies to it arrived and
    the client does not mark it as a repetition."""
    used = [call for call in calls if call.use is not None]
    return bool(used) and all(call.answered and call.delivered for call in used) and repetition == Repetition()


def _repeated(used: Sequence[RecordedCall], repetition: Repetition) -> RecordedCall | None:
    """Return the call of this attempt that the request repeats, or None if it is a further one."""
    if repetition.idempotency_key is not None:
        return next((call for call in used if call.idempotency_key == repetition.idempotency_key), None)
    plain = [call for call in used if call.idempotency_key is None]
    if (abandoned := next((call for call in plain if call.is_abandoned), None)) is not None:
        return abandoned
    return plain[-1] if repetition.is_retry and plain else None


def _might_repeat(call: RecordedCall, repetition: Repetition) -> bool:
    """Whether the request might repeat a call of a process that died, which will be known soon."""
    return repetition.idempotency_key is None and not call.answered and call.holder is Holder.OTHER
