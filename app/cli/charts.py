"""Figures as a few characters."""

from collections.abc import Sequence
from datetime import timedelta

_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int = 40) -> str:
    """One character a value between `low` and `high`, a gap where there is none; at most the `width` newest."""
    span = (high - low) or 1.0
    return "".join(
        " " if value is None else _LEVELS[max(0, min(7, int((value - low) / span * 8)))] for value in values[-width:]
    )


def bar(done: int, total: int, width: int = 20) -> str:
    """How much of the total is done."""
    filled = width * done // total if total else 0
    return "█" * filled + "░" * (width - filled)


def percent(share: float | None) -> str:
    """A share in [0, 1] as a whole percentage; a dash for None."""
    return "-" if share is None else f"{share:.0%}"


def figure(value: float | None, digits: int = 2) -> str:
    """A number; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as `41 s`, `2:05` or `1:02:05`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    text = str(timedelta(seconds=round(seconds)))
    return text.removeprefix("0:").removeprefix("0")
