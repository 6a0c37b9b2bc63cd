"""Numbers, times and durations of a report in words."""

from datetime import datetime

from learnloop_service.environment.wording import MINUS, signed

NONE = "\N{EN DASH}"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with that many decimals and separators."""
    return NONE if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def percent(share: float | None) -> str:
    """Return a share in [0, 1] as a whole percentage."""
    return NONE if share is None else f"{share:.0%}"


def points(value: float | None) -> str:
    """Return a difference in percentage points, with its sign."""
    return NONE if value is None else signed(value)


def duration(seconds: float | None) -> str:
    """Return seconds as `41 s`, `2 min 5 s` or `1 h 2 min`."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def dollars(value: float | None) -> str:
    """Return dollars, with more decimals for small amounts."""
    return NONE if value is None else f"${value:.4f}" if 0 < value < 0.1 else f"${value:,.2f}"


def moment(time: str | None) -> str:
    """Return an ISO 8601 time in UTC, to the minute."""
    return NONE if time is None else f"{datetime.fromisoformat(time):%d %B %Y, %H:%M} UTC".lstrip("0")
