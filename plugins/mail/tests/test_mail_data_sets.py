"""Data sets in the layout of ART-E's: rows on disk, and what becomes of them."""

import gzip
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from learnloop_mail.preparation.enron import (
    EMAIL_COLUMNS,
    KNOWN_BAD_QUESTIONS,
    QuestionCounts,
    QuestionFilter,
    RowCounts,
    emails,
    questions,
)
from learnloop_mail.preparation.mail_filter import FilterCounts, MailFilter, filtered
from learnloop_mail.preparation.table_files import DatasetError, count_rows, is_dataset, rows, splits
from learnloop_service.environment.email_search.inbox import Inbox, write_inbox
from scripts.enron_layout import EMAILS, save

Row = dict[str, Any]


def email(number: int, /, **fields: Any) -> Row:
    row = {"message_id": f"<{number}@x.example>", "subject": f"Number {number}", "from": "ann@x.example", "cc": []}
    more = {
        "to": ["bo@x.example"],
        "bcc": [],
        "date": datetime(2001, 5, number % 28 + 1, tzinfo=UTC),
        "body": f"Text {number}.",
    }
    return row | more | {"file_name": f"f{number}"} | fields


def question(id: int, /, **fields: Any) -> Row:
    row = {"id": id, "question": f"What is {id}?", "answer": f"{id}", "message_ids": ["<1@x.example>"]}
    return row | {"how_realistic": 0.9, "inbox_address": "bo@x.example", "query_date": "2001-06-01"} | fields


MAILS = [email(number) for number in range(1, 1203)]


def saved(folder: Path, rows: Sequence[Row]) -> None:
    save(folder, EMAILS, rows, "train")


def parquet(folder: Path, rows: Sequence[Row]) -> None:
    (folder / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=EMAILS), folder / "data" / "train-00000-of-00001.parquet")


def lines(folder: Path, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True)
    text = "\n".join(json.dumps(row | {"date": row["date"].isoformat()}) for row in rows)
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def arrow_file(folder: Path, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(list(rows), schema=EMAILS)
    with pa.OSFile(str(folder / "train.arrow"), "wb") as sink, pa.ipc.new_file(sink, EMAILS) as file:
        file.write_table(table)


@pytest.mark.parametrize("write", [saved, parquet, lines, arrow_file])
def test_every_form_gives_the_same_emails(write: Callable[[Path, Sequence[Row]], None], tmp_path: Path) -> None:
    write(tmp_path / "mail", MAILS)
    assert is_dataset(tmp_path / "mail")
    [(split, files)] = splits(tmp_path / "mail").items()
    assert split == "train"
    read = list(emails(rows(files, EMAIL_COLUMNS), RowCounts()))
    assert [mail.message_id for mail in read] == [row["message_id"] for row in MAILS]
    assert (read[4].sender, read[4].to, read[4].body) == ("ann@x.example", ("bo@x.example",), "Text 5.")
    assert read[4].sent_at == datetime(2001, 5, 6, tzinfo=UTC)
    assert count_rows(files) in (None, len(MAILS))


def test_the_splits_of_a_hub_repository_are_those_of_its_file_names(tmp_path: Path) -> None:
    for name in ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-0.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "README.md").touch()
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "contested.jsonl").touch()
    names = {split: [file.name for file in files] for split, files in splits(tmp_path).items()}
    assert names == {
        "train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        "test": ["test-0.parquet"],
        "validation": ["contested.jsonl"],
    }


def read_all(folder: Path) -> None:
    for files in splits(folder).values():
        list(rows(files, EMAIL_COLUMNS))


def damaged(folder: Path) -> Path:
    saved(folder, MAILS[:3])
    (file,) = folder.glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-400])
    return folder


def listed_only(folder: Path) -> Path:
    saved(folder, MAILS[:3])
    next(folder.glob("*.arrow")).unlink()
    return folder


def other_columns(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(pa.table({"text": ["a"]}), folder / "train.parquet")
    return folder


def written(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        folder.mkdir()
        (folder / name).write_text(text)
        return folder

    return write


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (damaged, "cannot read .*data-00000"),
        (listed_only, "is missing, which .*state.json lists"),
        (other_columns, "has no column message_id, .*it has: text"),
        (written("state.json", "{"), "cannot read .*state.json: it must list '_data_files'"),
        (written("dataset_dict.json", '{"splits": 3}'), "'splits' must be a list"),
        (written("train.parquet", "no parquet"), "cannot read .*train.parquet"),
        (written("train.jsonl", "{"), "train.jsonl line 1 is not JSON"),
        (written("train.jsonl", "\n[]"), "train.jsonl line 2 is not an object"),
        (written("train.jsonl", '{"subject": ""}'), "train.jsonl line 1 has no message_id, from"),
        (written("notes.txt", ""), "no dataset in"),
    ],
)
def test_a_damaged_file_is_named(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set")
    with pytest.raises(DatasetError, match=message):
        read_all(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subject": 3}, "email 2: 'subject' must be a text, not int"),
        ({"to": "bo@x.example"}, "email 2: 'to' must be a list of addresses"),
        ({"date": "tomorrow"}, "email 2: 'date' must be a timestamp, not 'tomorrow'"),
        ({"date": True}, "email 2: 'date' must be a timestamp"),
    ],
)
def test_an_email_of_another_form_is_named(fields: Row, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        list(emails([email(1), email(2, **fields)], RowCounts()))


def test_nulls_dates_and_duplicates_of_emails() -> None:
    counts = RowCounts()
    empty = email(2, subject=None, cc=None, date=None, body=None)
    read = list(emails([email(1), empty, email(1), email(3, message_id=None), email(4, date=0)], counts))
    assert [mail.message_id for mail in read] == ["<1@x.example>", "<2@x.example>", "<4@x.example>"]
    assert (read[1].subject, read[1].cc, read[1].sent_at) == ("", (), None)
    assert read[2].sent_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert (counts.read, counts.unidentified, counts.undated) == (5, 1, 1)


def test_filters_of_emails_count_what_they_leave_out() -> None:
    table = [
        email(1),
        email(2, body="x" * 5_001),
        email(3, to=[f"p{number}@x.example" for number in range(31)]),
        email(4, body="Text 1.", subject="Number 1"),
        email(5, to=["other@x.example"]),
        email(6, to=[], bcc=["Bo <BO@x.example>"]),
    ]
    counts = FilterCounts()
    mail_filter = MailFilter("bo@X.example", None, 5_000, 30, drop_copies=True)
    passing = filtered(emails(table, RowCounts()), mail_filter, counts)
    assert [mail.message_id for mail in passing] == ["<1@x.example>", "<6@x.example>"]
    assert counts == FilterCounts(kept=2, of_others=2, too_long=1, too_many_recipients=0, copies=1)
    assert len(list(filtered(emails(table, RowCounts()), MailFilter(max_emails=3), FilterCounts()))) == 3


def test_filters_of_questions_are_those_of_art_e() -> None:
    table = [
        question(1),
        question(2, message_ids=["<1@x.example>", "<2@x.example>"]),
        *(question(id) for id in KNOWN_BAD_QUESTIONS),
        question(3, how_realistic=0.2),
        question(4, inbox_address="Other@x.example"),
    ]
    counts = QuestionCounts()
    passing = list(questions("train", table, QuestionFilter(inbox="BO@x.example", min_realism=0.5), counts))
    assert [passed.id for passed in passing] == ["train-1"]
    assert counts == QuestionCounts(read=11, of_other_inboxes=1, too_many_messages=1, excluded=7, unrealistic=1)
    everything = QuestionFilter(max_messages=None, excluded=())
    assert len(list(questions("train", table, everything, QuestionCounts()))) == 11
    assert KNOWN_BAD_QUESTIONS == (49, 101, 129, 171, 208, 266, 327)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "one"}, "question 1: 'id' must be a whole number"),
        ({"question": " "}, "question 1: 'question' is empty"),
        ({"message_ids": []}, "question 1: 'message_ids' must be a list of Message-IDs"),
        ({"query_date": "soon"}, "question 1: 'query_date' must be a date"),
        ({"how_realistic": None}, "question 1: 'how_realistic' must be a number"),
    ],
)
def test_a_question_of_another_form_is_named(fields: Row, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        list(questions("train", [question(1, **fields)], QuestionFilter(min_realism=0.1), QuestionCounts()))


def test_a_search_of_a_shared_inbox_sees_one_mailbox(tmp_path: Path) -> None:
    table = [email(1), email(2, to=["cy@x.example"]), email(3, to=[], cc=["Bo Ek <bo@x.example>"])]
    write_inbox(tmp_path / "all.sqlite", emails(table, RowCounts()), shared=True)
    inbox = Inbox(tmp_path / "all.sqlite")
    assert inbox.shared
    assert {hit.subject for hit in inbox.search(["text"], mailbox="BO@x.example")} == {"Number 1", "Number 3"}
    assert len(inbox.search(["text"], mailbox="ann@x.example")) == 3
    assert inbox.search([], mailbox="nobody@x.example") == []
    inbox.close()


def test_of_too_many_emails_the_last_written_are_ranked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = [email(number, body="budget " * (20 - number)) for number in range(1, 13)]
    write_inbox(tmp_path / "many.sqlite", emails(table, RowCounts()))
    inbox = Inbox(tmp_path / "many.sqlite")
    assert inbox.search(["budget"], limit=1)[0].subject == "Number 1", "the best match"
    monkeypatch.setattr("learnloop_service.environment.email_search.inbox.MAX_RANKED", 4)
    assert [hit.subject for hit in inbox.search(["budget"])] == [f"Number {number}" for number in (9, 10, 11, 12)]
    inbox.close()
