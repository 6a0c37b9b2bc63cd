"""The times of schedules."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.cron import check_cron, latest_time, next_times

_NUMBERS = (st.integers(0, 59), st.integers(0, 23), st.integers(1, 28), st.integers(1, 12), st.integers(0, 6))
_STEPS = (60, 24, 28, 12, 7)


@st.composite
def crons(draw: st.DrawFn) -> str:
    """A valid expression."""

    def field(numbers: st.SearchStrategy[int], most: int) -> str:
        return draw(st.one_of(st.just("*"), numbers.map(str), st.integers(1, most - 1).map("*/{}".format)))

    return " ".join(field(numbers, most) for numbers, most in zip(_NUMBERS, _STEPS, strict=True))


TIMES = st.integers(0, 6 * 365 * 86_400).map(lambda s: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=s))
WAITS = st.lists(st.timedeltas(timedelta(0), timedelta(days=40)), min_size=1, max_size=8)


@given(crons(), TIMES, WAITS)
def test_a_look_makes_up_what_was_missed_once(cron: str, created: datetime, waits: list[timedelta]) -> None:
    """The scheduler's look notices the latest time if one is due, and sets the next one after now."""
    now, next_due = created, next_times(cron, created, 1)[0]
    noticed: list[datetime] = []
    for wait in waits:
        now += wait
        if next_due <= now:
            due_at = latest_time(cron, now)
            assert next_due <= due_at <= now
            assert next_times(cron, due_at - timedelta(minutes=1), 1) == [due_at]  # it is one of the expression's times
            noticed.append(due_at)
            next_due = next_times(cron, now, 1)[0]
        assert next_due > now
        assert next_times(cron, now, 1) == [next_due]
    assert noticed == sorted(set(noticed))
    expected = {latest_time(cron, now) for now in _moments(created, waits)} - {latest_time(cron, created)}
    assert set(noticed) == expected


def _moments(created: datetime, waits: list[timedelta]) -> list[datetime]:
    return [created + sum(waits[: number + 1], timedelta(0)) for number in range(len(waits))]


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("0 2 * *", "has 4 fields instead of 5"),
        ("* * * * * *", "has 6 fields instead of 5"),
        ("@daily", "has 1 fields instead of 5"),
        ("99 2 * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 2 * * 8", "bad day-of-week"),
        ("", "has 0 fields"),
    ],
)
def test_what_is_wrong_is_named(cron: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        check_cron(cron)
    assert 'such as "0 2 * * *" for 02:00 each day' in str(refused.value)


def test_a_time_is_noticed_from_its_first_instant_on() -> None:
    due = datetime(2026, 3, 14, 2, tzinfo=UTC)
    assert latest_time("0 2 * * *", due) == due
    assert latest_time("0 2 * * *", due - timedelta(microseconds=1)) == due - timedelta(days=1)
    assert next_times("0 2 * * *", due, 3) == [due + timedelta(days=days) for days in (1, 2, 3)]
