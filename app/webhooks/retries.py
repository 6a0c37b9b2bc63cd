"""When a message that was not taken is sent again. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

PAUSES_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Before the second, third, ... attempt: the table of the Standard Webhooks specification, about 3 days in all. When
they are used up the message has failed."""
JITTER = 0.2
"""A pause is at most this part longer or shorter, so that what failed together does not come back together."""
LONGEST_WAIT_S = 86_400.0
"""Of what a receiver may ask for."""


def pause_s(attempts: int, asked_s: float | None, random: Random, pauses_s: Sequence[float] = PAUSES_S) -> float | None:
    """Seconds to wait after the failed attempt `attempts` (from 1); None if it was the last.

    `asked_s` is what the receiver's Retry-After says: it is not asked again before.
    """
    if attempts > len(pauses_s):
        return None
    planned = pauses_s[attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)
    return planned if asked_s is None else max(planned, min(asked_s, LONGEST_WAIT_S))


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """What a Retry-After header asks for (RFC 9110, 10.2.3: seconds, or a date); None if there is none to follow."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())
