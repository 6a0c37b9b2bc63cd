"""The inbox: searching and reading, any text as keyword, many threads together, appending."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.email_search.inbox import MAX_HITS, Email, Inbox, InboxError, write_inbox

BUDGET = Email(
    id="kudo",
    message_id="<1@a.example>",
    sender='"Velin, Mara" <Mara@A.example>',
    to=("Bo Lind <bo@b.example>", "cy@c.example"),
    cc=("dee@d.example",),
    bcc=("eve@e.example",),
    sent_at=datetime(2026, 3, 1, 23, 30, tzinfo=timezone(timedelta(hours=-2))),
    subject="Tolvani budget",
    body="The budgets of Tolvani: 40 euros. NEAR the x_y limit, don't exceed.",
)
LUNCH = Email(
    "lami", "<2@a.example>", "bo@b.example", ("mara@a.example",), datetime(2026, 3, 3, tzinfo=UTC), "Lunch", "At noon."
)
UNDATED = Email("nope", "<3@a.example>", "cy@c.example", (), None, "Notes", "Nothing about money.")


@pytest.fixture(params=["file", "older file", "memory"])
def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inbox]:
    emails = [BUDGET, LUNCH, UNDATED]
    if request.param == "memory":
        opened = Inbox.in_memory(emails)
    else:
        assert write_inbox(tmp_path / "new" / "inbox.sqlite", emails) == 3
        if request.param == "older file":
            with closing(sqlite3.connect(tmp_path / "new" / "inbox.sqlite")) as connection:
                connection.execute("DROP INDEX address_folded")
        opened = Inbox(tmp_path / "new" / "inbox.sqlite")
    yield opened
    opened.close()


_any_text = st.text(st.characters(), max_size=20)


def ids(inbox: Inbox, *keywords: str, **filters: str | date) -> list[str]:
    return [hit.id for hit in inbox.search(keywords, **filters)]  # type: ignore[arg-type]


def test_a_mail_reads_back_whole(inbox: Inbox) -> None:
    mail = inbox.read("kudo")
    assert mail is not None
    assert mail.subject == BUDGET.subject
    assert mail.body == BUDGET.body
    assert mail.message_id == BUDGET.message_id
    assert mail.to == BUDGET.to
    assert mail.cc == BUDGET.cc
    assert mail.bcc == BUDGET.bcc
    assert mail.sent_at == BUDGET.sent_at
    assert inbox.read("nobody") is None


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        (["budget"], ["kudo"]),
        (["BUDGETS", "limits"], ["kudo"]),
        (["budget", "lunch"], []),
        (["budget euros"], ["kudo"]),
        (["x_y"], ["kudo"]),
        (["don't"], ["kudo"]),
        (["NEAR"], ["kudo"]),
        (["OR"], []),
        (["budget*"], ["kudo"]),
        (["bud*"], []),
        (["subject:tolvani"], []),
        (["lunch OR budget"], []),
        (['"lunch'], ["lami"]),
        (["-lunch"], ["lami"]),
        (["'; DROP TABLE email; --"], []),
    ],
)
def test_keywords_are_words_and_never_syntax(inbox: Inbox, keywords: list[str], expected: list[str]) -> None:
    assert ids(inbox, *keywords) == expected
    assert inbox.stats().emails == 3


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"sender": "MARA"}, ["kudo"]),
        ({"sender": "velin"}, ["kudo"]),
        ({"sender": "Velin, Mara <mara@a.example>"}, ["kudo"]),
        ({"sender": "\ud800"}, []),
        ({"sender": "%"}, []),
        ({"sender": "' OR 1=1 --"}, []),
        ({"recipient": "b.example"}, ["kudo"]),
        ({"recipient": "dee"}, ["kudo"]),
        ({"recipient": "eve@e.example"}, ["kudo"]),
        ({"recipient": "mara"}, ["lami"]),
        ({"sent_after": date(2026, 3, 2)}, ["lami", "kudo"]),
        ({"sent_after": date(2026, 3, 3)}, ["lami"]),
        ({"sent_before": date(2026, 3, 3)}, ["kudo"]),
        ({"sent_after": date(2026, 3, 2), "sent_before": date(2026, 3, 3), "sender": "mara"}, ["kudo"]),
        ({}, ["lami", "kudo", "nope"]),
    ],
)
def test_filters(inbox: Inbox, filters: dict[str, str | date], expected: list[str]) -> None:
    assert ids(inbox, **filters) == expected


@pytest.mark.parametrize(
    ("person", "expected"),
    [
        ({"sender": "MARA"}, ["kudo"]),
        ({"recipient": "dee"}, ["kudo"]),
        ({"sender": "velin", "recipient": "b.example"}, ["kudo"]),
        ({"sender": "velin", "recipient": "mara"}, []),
        ({"sender": "dee"}, []),
    ],
)
@pytest.mark.parametrize("few", [0, 1])
def test_people_among_few_and_many_mails(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, person: dict[str, str], expected: list[str], few: int
) -> None:
    monkeypatch.setattr("learnloop_service.environment.email_search.inbox._FEW", few)
    assert ids(inbox, "budget", **person) == expected


def test_hits_are_bounded_and_best_first() -> None:
    mails = [
        Email(
            f"id{n}",
            f"<{n}>",
            "a@a.example",
            (),
            None,
            "budget" if n == 17 else "plan",
            "budget and " + "much else " * 20,
        )
        for n in range(30)
    ]
    inbox = Inbox.in_memory(mails)
    hits = ids(inbox, "budget")
    assert len(hits) == MAX_HITS
    assert hits[0] == "id17"
    assert len(inbox.search(["budget"], limit=3)) == 3
    assert len(inbox.search(["budget"], limit=1_000)) == MAX_HITS
    inbox.close()


@pytest.mark.parametrize("keyword", ["_", "!!!", "\ud800", ""])
def test_keywords_without_a_word_list_nothing(inbox: Inbox, keyword: str) -> None:
    assert ids(inbox, keyword) == []
    assert ids(inbox, keyword, sender="mara") == []
    assert ids(inbox, "budget", keyword) == ["kudo"]


def test_people_are_found_in_any_case_of_any_alphabet() -> None:
    mail = Email("x", "<x>", "ÄNNE ŠTĚPÁNKOVÁ <s@a.example>", ("Жанна <z@a.example>",), None, "", "")
    inbox = Inbox.in_memory([mail])
    assert ids(inbox, sender="änne", recipient="ЖАННА") == ["x"]
    assert ids(inbox, sender="Štěpánková") == ["x"]
    inbox.close()


def test_a_limit_is_never_unbounded(inbox: Inbox) -> None:
    assert inbox.search([], limit=-1) == []


def test_any_id_may_be_asked_for(inbox: Inbox) -> None:
    assert inbox.read("\ud800") is None


@given(
    st.lists(_any_text, max_size=5),
    st.none() | _any_text,
    st.none() | _any_text,
)
def test_no_text_is_an_error(keywords: list[str], sender: str | None, recipient: str | None) -> None:
    inbox = Inbox.in_memory([BUDGET])
    assert len(inbox.search(keywords, sender=sender, recipient=recipient)) <= 1
    inbox.close()


def test_a_long_query_is_no_error(inbox: Inbox) -> None:
    assert ids(inbox, *(f"word{n}" for n in range(5_000)), "x" * 100_000) == []


def test_many_threads_read_together(inbox: Inbox) -> None:
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: (ids(inbox, "budget"), inbox.read("kudo") is not None), range(500)))
    assert results == [(["kudo"], True)] * 500


def test_readers_see_an_append_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "inbox.sqlite"
    write_inbox(path, [BUDGET])
    inbox = Inbox(path)
    counts = []

    def arriving() -> Iterator[Email]:
        yield LUNCH
        counts.append(inbox.stats().emails)
        yield UNDATED

    assert write_inbox(path, arriving()) == 2
    assert counts == [1]
    assert inbox.stats().emails == 3
    assert ids(inbox, "noon") == ["lami"]
    inbox.close()


def test_readers_are_not_locked_out_by_a_long_append(tmp_path: Path) -> None:
    path = tmp_path / "inbox.sqlite"
    write_inbox(path, [BUDGET])
    inbox = Inbox(path)
    hits = []

    def more_than_the_page_cache() -> Iterator[Email]:
        for number in range(300):
            yield Email(f"id{number}", f"<{number}>", "a@a.example", (), None, "big", f"word{number} " * 2_000)
        hits.append(ids(inbox, "budget"))

    assert write_inbox(path, more_than_the_page_cache()) == 300
    assert hits == [["kudo"]]
    assert inbox.stats().emails == 301
    inbox.close()


def test_a_closed_inbox_is_one_file(tmp_path: Path) -> None:
    write_inbox(tmp_path / "inbox.sqlite", [BUDGET])
    assert [path.name for path in tmp_path.iterdir()] == ["inbox.sqlite"]


def test_a_failed_first_write_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[Email]:
        yield LUNCH
        raise RuntimeError("source gone")

    with pytest.raises(RuntimeError, match="source gone"):
        write_inbox(tmp_path / "inbox.sqlite", failing())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_inbox_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InboxError, match="cannot write inbox"):
        write_inbox(tmp_path / "file" / "inbox.sqlite", [BUDGET])


def test_a_known_message_id_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "inbox.sqlite"
    assert write_inbox(path, [BUDGET, LUNCH]) == 2
    copy = Email("other", BUDGET.message_id, "x@x.example", (), None, "copy", "copy")
    assert write_inbox(path, [copy, UNDATED]) == 1
    inbox = Inbox(path)
    assert ids(inbox, "copy") == []
    assert inbox.stats().emails == 3
    inbox.close()


def test_a_failed_append_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "inbox.sqlite"
    write_inbox(path, [BUDGET])

    def failing() -> Iterator[Email]:
        yield LUNCH
        raise RuntimeError("source gone")

    with pytest.raises(RuntimeError, match="source gone"):
        write_inbox(path, failing())
    inbox = Inbox(path)
    assert ids(inbox) == ["kudo"]
    assert ids(inbox, "noon") == []
    inbox.close()


def test_the_read_side_cannot_write(tmp_path: Path) -> None:
    write_inbox(tmp_path / "inbox.sqlite", [BUDGET])
    for inbox in (Inbox(tmp_path / "inbox.sqlite"), Inbox.in_memory([BUDGET])):
        with inbox._connection() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM email")
        inbox.close()


@pytest.mark.parametrize("content", [None, b"", b"no database " * 100])
def test_what_is_no_inbox_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "inbox.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InboxError, match=r"cannot read inbox .*inbox\.sqlite"):
        Inbox(path)
    if content:
        with pytest.raises(InboxError, match="cannot write inbox"):
            write_inbox(path, [BUDGET])
        assert path.read_bytes() == content


def test_a_path_with_characters_of_a_uri(tmp_path: Path) -> None:
    path = tmp_path / "50% a?b#c é.sqlite"
    write_inbox(path, [BUDGET])
    inbox = Inbox(path)
    assert ids(inbox) == ["kudo"]
    inbox.close()


def test_stats(inbox: Inbox) -> None:
    stats = inbox.stats()
    assert stats.emails == 3
    assert stats.senders == 3
    assert stats.recipients == 5
    assert stats.first == BUDGET.sent_at
    assert stats.last == LUNCH.sent_at
    empty = Inbox.in_memory([])
    assert empty.stats().first is None
    assert empty.search(["x"]) == []
    empty.close()
