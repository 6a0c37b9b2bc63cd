"""Invented emails and questions in the exact layout of ART-E's data, for trials without the real data.

    python -m scripts.enron_layout FOLDER

FOLDER/emails and FOLDER/questions can be opened by `datasets.load_from_disk` and have the features of
`corbt/enron-emails` and `corbt/enron_emails_sample_questions`. They contain everything that the filters look for: long
emails, emails to many people, copies, questions that need two emails, unrealistic ones, and those that ART-E leaves
out.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from learnloop_mail.preparation.enron import KNOWN_BAD_QUESTIONS
from learnloop_service.environment.base import Split
from learnloop_service.environment.email_search.inbox import Email
from learnloop_service.environment.email_search.synthetic import World, address_of, make_world

Row = dict[str, Any]
_TEXTS = pa.list_(pa.string())
EMAILS = pa.schema(
    [
        ("message_id", pa.string()),
        ("subject", pa.string()),
        ("from", pa.string()),
        ("to", _TEXTS),
        ("cc", _TEXTS),
        ("bcc", _TEXTS),
        ("date", pa.timestamp("us")),
        ("body", pa.string()),
        ("file_name", pa.string()),
    ]
)
QUESTIONS = pa.schema(
    [
        ("id", pa.int64()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("message_ids", _TEXTS),
        ("how_realistic", pa.float64()),
        ("inbox_address", pa.string()),
        ("query_date", pa.string()),
    ]
)
_LARGE_BODY = 6_000
_MANY = 40
_ROWS_A_FILE = 1_000


def write_layout(folder: Path, mailboxes: int, held_out_mailboxes: int, seed: int = 0) -> None:
    """Write both data sets; a mailbox has about 17 emails and one question."""
    worlds: dict[Split, list[World]] = {
        "train": [make_world("train", seed, number) for number in range(mailboxes)],
        "test": [make_world("test", seed, number) for number in range(held_out_mailboxes)],
    }
    mailed = [
        row
        for split, split_worlds in worlds.items()
        for number, world in enumerate(split_worlds)
        for row in _emails(world, address_of(split, seed, number))
    ]
    save(folder / "emails", EMAILS, mailed + _filtered_out(mailed[0]), "train")
    questions = {split: list(_questions(split, split_worlds, seed)) for split, split_worlds in worlds.items()}
    for split, rows in questions.items():
        save(folder / "questions" / split, QUESTIONS, rows, split)
    (folder / "questions" / "dataset_dict.json").write_text(json.dumps({"splits": list(questions)}))


def _emails(world: World, owner: str) -> Iterator[Row]:
    """Yield the emails of one mailbox. Each has the owner in blind copy, so that it carries the mailbox's address."""
    for mail in world.emails:
        yield _row(mail) | {"bcc": [owner]}


def _row(mail: Email) -> Row:
    assert mail.sent_at is not None
    return {
        "message_id": mail.message_id,
        "subject": mail.subject,
        "from": mail.sender,
        "to": list(mail.to),
        "cc": list(mail.cc),
        "bcc": list(mail.bcc),
        "date": mail.sent_at.replace(tzinfo=None),
        "body": mail.body,
        "file_name": f"invented/{mail.id}",
    }


def _filtered_out(row: Row) -> list[Row]:
    """Return what ART-E's filters leave out: a copy, a long email and one to many people."""
    later = {"date": row["date"] + timedelta(days=1)}
    return [
        row | later | {"message_id": "<copy@invented.example>"},
        row | later | {"message_id": "<long@invented.example>", "body": "All of it. " * (_LARGE_BODY // 11 + 1)},
        row | later | {"message_id": "<many@invented.example>", "to": [f"p{n}@many.example" for n in range(_MANY)]},
    ]


def _questions(split: Split, worlds: Sequence[World], seed: int) -> Iterator[Row]:
    """Yield one question for each mailbox, and three that are left out. Ids are unique within a split, as in the real
    data."""
    ids = iter(number for number in range(1, 10 * len(worlds) + 1_000) if number not in KNOWN_BAD_QUESTIONS)
    rows = [_question(world, next(ids), address_of(split, seed, n)) for n, world in enumerate(worlds)]
    yield from rows
    first = rows[0]
    yield first | {"id": next(ids), "message_ids": [mail.message_id for mail in worlds[0].emails[:2]]}
    yield first | {"id": next(ids), "how_realistic": 0.1}
    yield first | {"id": KNOWN_BAD_QUESTIONS[0]}


def _question(world: World, id: int, owner: str) -> Row:
    [source] = [mail.message_id for mail in world.emails if mail.id == world.source_id]
    return {
        "id": id,
        "question": world.question,
        "answer": world.answer,
        "message_ids": [source],
        "how_realistic": 0.8,
        "inbox_address": owner,
        "query_date": world.query_date,
    }


def save(folder: Path, schema: pa.Schema, rows: Sequence[Row], split: str) -> None:
    """Write the files that `Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    features = {field.name: _feature(field.type) for field in schema}
    described = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    table = pa.Table.from_pylist(list(rows), schema=described)
    names = []
    count = max(1, -(-len(rows) // _ROWS_A_FILE))
    for number in range(count):
        names.append(f"data-{number:05d}-of-{count:05d}.arrow")
        with pa.OSFile(str(folder / names[-1]), "wb") as sink, pa.ipc.new_stream(sink, described) as stream:
            stream.write_table(table.slice(number * _ROWS_A_FILE, _ROWS_A_FILE))
    state: Row = {"_data_files": [{"filename": name} for name in names], "_fingerprint": f"{len(rows):016x}"}
    state |= {"_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False}
    (folder / "state.json").write_text(json.dumps({**state, "_split": split}, indent=2))
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2))


def _feature(kind: pa.DataType) -> Mapping[str, Any]:
    """Return the feature as `datasets` describes it."""
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    return {"dtype": {"double": "float64"}.get(str(kind), str(kind)), "_type": "Value"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mailboxes", type=int, default=200, help="with a training question each")
    parser.add_argument("--held-out-mailboxes", type=int, default=60, help="with a held-out question each")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_layout(arguments.folder, arguments.mailboxes, arguments.held_out_mailboxes, arguments.seed)
    print(f"emails and questions in {arguments.folder}")


if __name__ == "__main__":
    main()
