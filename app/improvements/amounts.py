"""Shares, times and prices as the texts of an improvement say them."""

from math import floor

from learnloop_service.app.reports.format import dollars
from learnloop_service.app.schemas.improvements import PriceOut
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.environment.wording import counted


def percent(share: float, target: float | None = None) -> str:
    """Return a share as a percentage. 199 of 200 is no 100%, 1 of 300 no 0%, and what is rounded is on the same side
    of the target as what was measured."""
    whole = _whole(share)
    if target is not None and (share < target) != (whole < round(100 * target, 6)):
        return f"{floor(1000 * share) / 10:.1f}%"
    return f"{whole}%"


def exactly(target: float) -> str:
    """Return a share that somebody chose, as it was written."""
    return f"{100 * target:.4g}%"


def with_interval(success: IntervalOut, target: float | None = None) -> str:
    """Return a success with its interval, such as `92% [83, 97]`."""
    return f"{percent(success.mean, target)} [{_whole(success.low)}, {_whole(success.high)}]"


def clock(minutes: float) -> str:
    """Return a time as `1:40`, or `1:02:05` from an hour on."""
    seconds = round(60 * minutes)
    hours = f"{seconds // 3600}:" if seconds >= 3600 else ""
    return f"{hours}{seconds // 60 % 60:0{2 if hours else 1}}:{seconds % 60:02}"


def duration(minutes: float, more: str = "") -> str:
    """Return a time in words, such as `40 seconds`, `1:40 minutes` or `9 more minutes`."""
    seconds = round(60 * minutes)
    if seconds < 60:
        return counted(seconds, f"{more}second")
    if seconds < 3600:
        return f"{clock(minutes)} {more}minutes" if seconds % 60 else counted(seconds // 60, f"{more}minute")
    return f"{seconds // 3600}:{seconds // 60 % 60:02} {more}hours" if seconds != 3600 else f"1 {more}hour"


def price(spent: PriceOut) -> str:
    """Return a price, in dollars if it is in dollars."""
    return dollars(spent.usd) if spent.usd else duration(spent.minutes)


def paid(spent: PriceOut, *, more_usd: bool, more_time: bool) -> str:
    """Return a price as part of a sentence. It says `more` if a price in the same unit came before it."""
    if spent.usd:
        return f"for {dollars(spent.usd)}{' more' if more_usd else ''}"
    return f"for {duration(spent.minutes, 'more ' if more_time else '')}"


def _whole(share: float) -> int:
    """Return a percentage that is 0 or 100 only if the share is."""
    return round(100 * share) if share in (0, 1) else min(99, max(1, round(100 * share)))
