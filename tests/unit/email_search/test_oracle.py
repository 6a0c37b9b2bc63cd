"""The demonstrations of the oracle: filters that the question names, and sometimes a second search."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Json, ToolCall
from learnloop_service.environment.email_search.environment import ImportedEmailSearch, SyntheticEmailSearch, inbox_path
from learnloop_service.environment.email_search.inbox import Email, write_inbox
from learnloop_service.environment.email_search.named_filters import Filters, filters_in
from learnloop_service.training.environment_check.agents import play_turns
from learnloop_service.training.environment_check.play import play

START = datetime(2021, 3, 1, 9, tzinfo=UTC)


def mail(number: int, sender: str, subject: str, body: str = "Nothing new this week.") -> Email:
    sent_at = START + timedelta(days=number)
    return Email(f"id{number}", f"<{number}@x.example>", sender, ("list@x.example",), sent_at, subject, body)


MARA, JO = "Mara Velin <mara@x.example>", "jo.lind@x.example"
MAILS = [
    *(mail(number, JO if number % 2 else MARA, "Weekly report of the parser") for number in range(30)),
    mail(30, MARA, "Venue of the summit", "We booked the Kestrel."),
    mail(31, JO, "Budget", "It is 40 euros, says Mara Velin."),
    mail(32, MARA, "Budget", "It is 50 euros now."),
]
BY_SENDER = 'On which day did Mara Velin send the email "Budget"?'
BY_DAY = 'Who sent the email "Weekly report of the parser" on 8 March 2021?'
BY_WORDS = "Which hotel did we book as the venue of the summit?"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_inbox(inbox_path(tmp_path, "mine"), MAILS)
    return tmp_path


def environment_of(directory: Path, question: str, source: str, ids: int = 40) -> ImportedEmailSearch:
    """An environment that asks one question under several ids."""
    rows = [{"question": question, "answer": "x", "source_ids": [source], "id": f"q{n}"} for n in range(ids)]
    rows += [
        {"question": f"{split}?", "answer": "x", "source_ids": ["id0"], "id": split} for split in ("validation", "test")
    ]
    named = [{**row, "split": row["id"] if str(row["id"]) in ("validation", "test") else "train"} for row in rows]
    return ImportedEmailSearch(inbox_path(directory, "mine"), "mine", named)


def searches(turns: list[ToolCall]) -> list[dict[str, Json]]:
    return [dict(turn.arguments) for turn in turns if turn.name == "search_inbox"]


def demonstrated(directory: Path, question: str, source: str) -> list[list[dict[str, Json]]]:
    environment = environment_of(directory, question, source)
    demonstrations = [searches(environment.solution(scenario)) for scenario in environment.scenarios("train", 40, 0)]
    environment.close()
    return demonstrations


@pytest.mark.parametrize(
    ("question", "source", "first", "last"),
    [
        (
            BY_DAY,
            "id7",
            {"keywords": ["Weekly", "report", "8", "March", "2021"]},
            {"keywords": ["Weekly", "report"], "sent_after": "2021-03-08", "sent_before": "2021-03-09"},
        ),
        (
            BY_SENDER,
            "id32",
            None,  # the other budget has her name in its text: the search by name is not empty
            {"keywords": ["Budget"], "sender": "Mara Velin"},
        ),
        (BY_WORDS, "id30", {"keywords": ["venue", "summit", "Which"]}, {"keywords": ["venue", "summit"]}),
    ],
)
def test_a_search_is_filtered_by_what_the_question_names(
    directory: Path, question: str, source: str, first: dict[str, Any] | None, last: dict[str, Any]
) -> None:
    demonstrations = demonstrated(directory, question, source)
    assert all(searched[-1] == last for searched in demonstrations)
    twice = [searched for searched in demonstrations if len(searched) == 2]
    assert (0 < len(twice) < len(demonstrations) / 2) == (first is not None)
    assert all(searched[0] == first for searched in twice)
    assert demonstrations == demonstrated(directory, question, source)


async def test_a_first_search_finds_nothing_and_the_second_the_email(directory: Path) -> None:
    environment = environment_of(directory, BY_DAY, "id7")
    counted = set()
    for scenario in environment.scenarios("train", 40, 0):
        turns = environment.solution(scenario)
        played = await play(environment, scenario, play_turns(turns))
        results = [message["content"] for message in played.messages if message["role"] == "tool"]
        empty = [result.startswith("No mail holds") for result in results[: len(searches(turns))]]
        assert empty == [True] * (len(empty) - 1) + [False]
        assert environment.success(played.outcome, 1.0)
        assert played.outcome["found_source"]
        counted.add(len(empty))
    environment.close()
    assert counted == {1, 2}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (BY_SENDER, Filters("Mara Velin", None, ("Mara", "Velin"))),
        ("What did mara@x.example say on April 1, 2021?", Filters("mara@x.example", (START + timedelta(31)).date())),
        ("What came on 2021-04-01?", Filters(None, (START + timedelta(31)).date(), ("2021", "04", "01"))),
        ('Who sent "Mara Velin on 1 April 2021"?', Filters()),
        ("Who is Tamara Velin, on 11 April 2021?", Filters()),
    ],
)
def test_a_sender_and_a_day_are_named_outside_quotation_marks(question: str, expected: Filters) -> None:
    filters = filters_in(question, mail(31, MARA, "x"))
    assert filters.sender == expected.sender
    assert filters.day == expected.day
    assert not expected.words or filters.words == expected.words


def test_an_address_is_named_by_the_words_before_its_at_sign() -> None:
    assert filters_in("What did Jo Lind want?", mail(1, JO, "x")).sender == "jo.lind"


@given(st.text(max_size=80), st.text(max_size=30))
def test_any_question_and_sender_have_filters_or_none(question: str, sender: str) -> None:
    filters = filters_in(question, mail(1, sender, "x"))
    assert (filters.sender is None and filters.day is None) == (not filters.words)


def test_demonstrations_on_invented_mail_stay_as_they_are() -> None:
    environment, digest = SyntheticEmailSearch(), hashlib.sha256()
    for split in ("train", "test"):
        for scenario in environment.scenarios(split, 300, 0):
            digest.update(repr(environment.solution(scenario)).encode())
    environment.close()
    assert digest.hexdigest()[:16] == "4b71df5eabaa2241"
