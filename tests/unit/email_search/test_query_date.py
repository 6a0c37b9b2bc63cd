"""Today in an imported inbox: the newest day of the mail, whatever a few misdated emails say."""

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.email_search.environment import (
    ImportedEmailSearch,
    build,
    inbox_path,
    questions_path,
)
from learnloop_service.environment.email_search.inbox import Email, write_inbox
from learnloop_service.environment.email_search.query_date import today_of

_days = st.lists(st.dates(date(1990, 1, 1), date(2020, 12, 31)), max_size=300)
_within_a_year = st.lists(st.integers(0, 364).map(lambda day: date(2002, 1, 1) + timedelta(days=day)), min_size=19)


@pytest.mark.parametrize(
    ("mails", "today"),
    [
        ({}, None),
        ({date(2002, 12, 4): 1}, date(2002, 12, 4)),
        ({date(2002, 12, 4): 3_752, date(2028, 10, 4): 1}, date(2002, 12, 4)),
        ({date(2002, 1, 1): 18, date(2028, 10, 4): 1}, date(2028, 10, 4)),  # too few to tell
        ({date(2002, 1, 1): 19, date(2028, 10, 4): 1}, date(2002, 1, 1)),
        ({date(2002, 1, 1): 198, date(2028, 1, 1): 1, date(2031, 1, 1): 1}, date(2002, 1, 1)),
        ({date(2002, 1, 1): 19, date(2003, 1, 1): 1}, date(2003, 1, 1)),  # at most a year later: it is believed
        ({date(2002, 1, 1): 19, date(2003, 1, 2): 1}, date(2002, 1, 1)),
        ({date(2002, 1, 1): 90, date(2005, 1, 1): 10}, date(2005, 1, 1)),  # a tenth of the mail is not a mistake
    ],
)
def test_misdated_mail_is_not_today(mails: dict[date, int], today: date | None) -> None:
    assert today_of(mails) == today


@given(_days)
def test_today_is_a_day_of_the_mail_and_no_later_than_its_newest(days: list[date]) -> None:
    today = today_of(Counter(days))
    assert (today is None) == (not days)
    assert today is None or (today in days and sum(day > today for day in days) <= max(1, len(days) // 100))


@given(_within_a_year, st.dates(date(2003, 12, 31)))
def test_one_email_of_a_later_year_changes_nothing(days: list[date], misdated: date) -> None:
    assert today_of(Counter(days)) == max(days)
    assert today_of(Counter([*days, misdated])) == max(days)


def test_an_inbox_with_a_misdated_email_asks_on_its_real_newest_day(tmp_path: Path) -> None:
    def mail(number: int, sent_at: datetime | None) -> Email:
        return Email(f"id{number}", f"<{number}@x.example>", "Jo <jo@x.example>", (), sent_at, f"Note {number}", "Hi.")

    start, path = datetime(2002, 9, 1, 23, tzinfo=UTC), inbox_path(tmp_path, "mine")
    real = [mail(number, start + timedelta(days=number)) for number in range(30)]
    write_inbox(path, [*real, mail(30, None), mail(31, datetime(2028, 10, 4, tzinfo=UTC))])
    rows = [{"question": f"{n}?", "answer": "x", "source_ids": ["id0"]} for n in range(2)]
    questions_path(path).write_text("\n".join(map(json.dumps, [*rows, {**rows[0], "query_date": "2002-09-07"}])))
    environment = build({"inbox": "mine"}, tmp_path)
    assert isinstance(environment, ImportedEmailSearch)
    assert environment.ask({"question": "What is new?"}).task["query_date"] == "2002-09-30"
    days = [scenario.task["query_date"] for scenario in environment.questions]
    assert days == ["2002-09-30", "2002-09-30", "2002-09-07"]  # a question's own day stays
    environment.close()
