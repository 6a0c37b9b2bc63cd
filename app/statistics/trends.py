"""Says when a held-out scenario was learned, from the share of its rollouts that were right at each checkpoint."""

from collections.abc import Sequence
from enum import StrEnum


class Trend(StrEnum):
    """How a scenario fared over the checkpoints, in the order in which scenarios are shown."""

    KNOWN = "known"
    """All its rollouts were right at the first checkpoint and at the last one."""
    LEARNED = "learned"
    """All its rollouts are right at the last checkpoint, and were not at the first one."""
    LOST = "lost"
    """At some checkpoint after the first all its rollouts were right; at the last one they are not, though still no
    fewer than at the first one."""
    CHANGED = "changed"
    """Any other change without a loss, such as from none to half of its rollouts."""
    GOT_WORSE = "got_worse"
    """Fewer of its rollouts are right at the last checkpoint than at the first one."""
    NEVER = "never"
    """None of its rollouts was right at any checkpoint."""


_ORDER = {trend: position for position, trend in enumerate(Trend)}


def trend(shares: Sequence[float | None]) -> Trend:
    """Return the trend of a scenario with these shares of right rollouts, in [0, 1], by checkpoint.

    A share is None where the scenario was not evaluated. Without any evaluation the trend is NEVER.
    """
    evaluated = [share for share in shares if share is not None]
    if not any(evaluated):
        return Trend.NEVER
    first, last = evaluated[0], evaluated[-1]
    if last < first:
        return Trend.GOT_WORSE
    if last == 1:
        return Trend.KNOWN if first == 1 else Trend.LEARNED
    return Trend.LOST if 1 in evaluated else Trend.CHANGED


def learned_at(shares: Sequence[float | None]) -> int | None:
    """Return the index of the checkpoint from which on all rollouts were right, up to the last evaluation; None if they
    are not."""
    since: int | None = None
    for index, share in enumerate(shares):
        if share == 1:
            since = index if since is None else since
        elif share is not None:
            since = None
    return since


def order(shares: Sequence[float | None]) -> tuple[int, int, float]:
    """Return the key that sorts scenarios by trend, then by when they were first right, then by the best share."""
    evaluated = [share for share in shares if share is not None]
    kind = trend(shares)
    since = (
        learned_at(shares)
        if kind is Trend.LEARNED
        else next((n for n, right_share in enumerate(shares) if right_share == 1), 0)
    )
    return _ORDER[kind], since or 0, -sum(evaluated) / max(1, len(evaluated))
