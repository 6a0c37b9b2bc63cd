"""The times of a schedule, from a cron expression in UTC."""

from datetime import datetime, timedelta
from itertools import islice

from cronsim import CronSim, CronSimError

_FIELDS = 5
_EXAMPLE = (
    'give minute, hour, day of the month, month and day of the week in UTC, such as "0 2 * * *" for 02:00 each day'
)
_TICK = timedelta(microseconds=1)


def check_cron(expression: str) -> None:
    """Raise ValueError, with what is wrong and an example, unless the expression names times."""
    if (count := len(expression.split())) != _FIELDS:
        raise ValueError(f"{expression!r} has {count} fields instead of {_FIELDS}: {_EXAMPLE}")
    try:
        next(CronSim(expression, datetime(2000, 1, 1)))  # noqa: DTZ001 - only whether there is such a time
    except CronSimError as error:
        raise ValueError(f"{expression!r}: {str(error).lower()}; {_EXAMPLE}") from error
    except StopIteration:
        raise ValueError(f"{expression!r} names no time at all; {_EXAMPLE}") from None


def next_times(expression: str, after: datetime, count: int) -> list[datetime]:
    """Return the first `count` times later than `after`, which is in UTC."""
    return list(islice(CronSim(expression, after), count))


def latest_time(expression: str, until: datetime) -> datetime:
    """Return the last time that is not later than `until`, which is in UTC."""
    return next(CronSim(expression, until + _TICK, reverse=True))
