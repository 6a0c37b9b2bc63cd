"""Says when a held-out scenario was learned, from the share of its rollouts that were right at each checkpoint."""

from collections.abc import Sequence
from enum import StrEnum


class Trend(StrEnum):
    """What became of a scenario, in the order in which scenarios are shown."""

    KNOWN = "known"
    """All its rollouts were right at the first checkpoint and at the last one."""
    LEARNED = "learned"
    """All its rollouts are right at the last checkpoint, and were not at the first one."""
    LOST = "lost"
    """At some checkpoint after the first all its rollouts were right; at the last one they are not, though still no
    fewer than at the first one."""
    CHANGED = "changed"
    """Any other change that is no loss, such as from none to half of its rollouts."""
    GOT_WORSE = "got_worse"
    """Fewer of its rollouts are right at the last checkpoint than at the first one."""
    NEVER = "never"
    """None of its rollouts was right at any checkpoint."""


_ORDER = {trend: place for place, trend in enumerate(Trend)}


def trend(shares: Sequence[float | None]) -> Trend:
    """Return what became of a scenario with these shares of right rollouts, in [0, 1], by checkpoint; None where it was
    not evaluated. Without any evaluation nothing was ever right."""
    known = [share for share in shares if share is not None]
    if not any(known):
        return Trend.NEVER
    first, last = known[0], known[-1]
    if last < first:
        return Trend.GOT_WORSE
    if last == 1:
        return Trend.KNOWN if first == 1 else Trend.LEARNED
    return Trend.LOST if 1 in known else Trend.CHANGED


def learned_at(shares: Sequence[float | None]) -> int | None:
    """Return the index of the checkpoint from which on all rollouts were right, up to the last evaluation; None if they
    are not."""
    since: int | None = None
    for place, share in enumerate(shares):
        if share == 1:
            since = place if since is None else since
        elif share is not None:
            since = None
    return since


def order(shares: Sequence[float | None]) -> tuple[int, int, float]:
    """Return the key that sorts scenarios: by trend, then by when they were first right, then the better ones first."""
    known = [share for share in shares if share is not None]
    found = trend(shares)
    since = learned_at(shares) if found is Trend.LEARNED else next((n for n, each in enumerate(shares) if each == 1), 0)
    return _ORDER[found], since or 0, -sum(known) / max(1, len(known))
