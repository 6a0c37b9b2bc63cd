"""Decides when a failed message is sent again. Pure functions."""

from collections.abc import Sequence
from random import Random

RETRY_DELAYS_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Delays before the second, third, ... attempt: the schedule of the Standard Webhooks specification, about 3 days in
total. After the last attempt the message has failed."""
JITTER = 0.2
"""Each delay is up to this fraction longer or shorter, so that messages that failed together are not retried
together."""
MAX_RETRY_AFTER_S = 86_400.0
"""Longest delay that a receiver can ask for."""


def retry_delay_s(
    attempts: int, retry_after_s: float | None, random: Random, delays_s: Sequence[float] = RETRY_DELAYS_S
) -> float | None:
    """Return the seconds until the next attempt after `attempts` failed ones (at least 1); None if there is no further
    one.

    `retry_after_s` is the receiver's Retry-After. No attempt is made before it has passed, up to MAX_RETRY_AFTER_S.
    """
    if attempts > len(delays_s):
        return None
    planned = delays_s[attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)
    return planned if retry_after_s is None else max(planned, min(retry_after_s, MAX_RETRY_AFTER_S))
