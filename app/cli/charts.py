"""Formats figures with a few characters."""

from collections.abc import Sequence
from datetime import timedelta

_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int = 40) -> str:
    """Return one character per value between `low` and `high`, with a gap for None, of the `width` newest values."""
    span = (high - low) or 1.0
    return "".join(
        " " if value is None else _LEVELS[max(0, min(7, int((value - low) / span * 8)))] for value in values[-width:]
    )


def bar(finished: int, total: int, width: int = 20) -> str:
    """Return a progress bar of `width` characters."""
    filled = width * finished // total if total else 0
    return "█" * filled + "░" * (width - filled)


def percent(share: float | None) -> str:
    """Return a share in [0, 1] as a whole percentage, or a dash for None."""
    return "-" if share is None else f"{share:.0%}"


def figure(value: float | None, digits: int = 2) -> str:
    """Return a number with that many decimals, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Return seconds as `41 s`, `2:05` or `1:02:05`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    text = str(timedelta(seconds=round(seconds)))
    return text.removeprefix("0:").removeprefix("0")
