"""Questions from tables: columns, rows that are left out, splits that do not depend on the order, near duplicates."""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnloop_service.app.datasets.near_duplicates import groups
from learnloop_service.app.operations.import_conversations import holds_conversations
from learnloop_service.app.operations.import_questions import QuestionImport, read_questions
from learnloop_service.app.operations.imported import NothingToImport
from learnloop_service.environment.registry import build
from learnloop_service.judges.reference import words

WORDS = [
    "lamp",
    "refund",
    "invoice",
    "Oslo",
    "Lima",
    "repair",
    "battery",
    "colour",
    "password",
    "chair",
    "delivery",
    "screw",
]


def read(
    rows: Sequence[Sequence[str]], header: bool = True, encoding: str | None = None, **columns: str
) -> QuestionImport:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return read_questions(file.getvalue().encode(), columns, header=header, encoding=encoding)  # type: ignore[arg-type]


def distinct_questions(count: int) -> list[tuple[str, str]]:
    """Questions without near duplicates."""
    return [(f"{WORDS[n % 12]} {WORDS[n // 12 % 12]} number {n}?", f"answer {n}") for n in range(count)]


def splits(imported: QuestionImport) -> Mapping[str, str]:
    return {task["question"]: task["split"] for task in imported.tasks}


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 200), st.randoms())
def test_splits_depend_on_neither_order_nor_other_rows(count: int, random: Any) -> None:
    rows = distinct_questions(count)
    first = splits(read([("question", "answer"), *rows]))
    random.shuffle(rows)
    assert splits(read([("question", "answer"), *rows])) == first
    assert set(first.values()) == {"train", "validation", "test"}
    more = splits(read([("question", "answer"), *rows, *distinct_questions(count + 50)[count:]]))
    changed = [question for question in first if more[question] != first[question]]
    assert len(changed) <= 2  # only those that filled a split which was empty before


def test_the_environment_takes_what_was_made() -> None:
    imported = read(
        [
            ("Question ", "expected answer", "Context"),
            *((q, a, "" if n % 2 else "fact") for n, (q, a) in enumerate(distinct_questions(60))),
        ]
    )
    assert imported.columns == {"question": "Question", "answer": "expected answer", "facts": "Context"}
    environment = build("answers", {"scenarios": imported.tasks}, None)  # type: ignore[arg-type]
    count = Counter(task["split"] for task in imported.tasks)["test"]
    scenarios = environment.scenarios("test", count, seed=0)
    assert {task.id for task in scenarios} == {task["id"] for task in imported.tasks if task["split"] == "test"}
    assert {"facts" in scenario.task for scenario in scenarios} <= {True, False}


def test_rows_are_left_out_by_number() -> None:
    imported = read(
        [
            ("question", "answer"), *distinct_questions(9), ("", "a"), ("b", " "), ("x" * 20_001, "c"),
            ("LAMP  lamp number 0?", "Answer 0"), ("lamp lamp number 0?", "another"), ("d", "e", "f"),
        ]
    )  # fmt: skip
    assert imported.left_out == {
        "it has 3 cells, and the first row 2": [16],
        "it has no question": [11],
        "it has no answer": [12],
        "its question has more than 20,000 characters": [13],
        "it asks what an earlier row asks": [14],
        "it asks what an earlier row asks, and expects another answer": [15],
    }
    assert imported.lines == 15
    assert len(imported.tasks) == 9
    assert imported.problem is None


def test_near_duplicates_are_in_one_split_if_their_answers_agree() -> None:
    same = [
        (f"How long can I return a lamp that I bought in Oslo {end}", "30 days") for end in ("?", "please?", "now?")
    ]
    other = [("How long can I return a lamp that I bought in Lima ?", "14 days")]
    for _ in range(5):
        imported = read([("question", "answer"), *same, *other, *distinct_questions(30)])
        split_of = splits(imported)
        assert len({split_of[question] for question, _ in same}) == 1
        assert imported.near == 3
        assert imported.different == 32
        assert imported.answers == 32


@given(st.lists(st.tuples(st.lists(st.sampled_from(WORDS)), st.sampled_from("ab")), max_size=30), st.randoms())
def test_groups_are_those_of_a_comparison_of_all(texts: list[tuple[list[str], str]], random: Any) -> None:
    def partition(order: list[tuple[list[str], str]]) -> set[frozenset[tuple[Any, ...]]]:
        members: dict[int, set[Any]] = {}
        for number, (text, kind) in zip(groups([t for t, _ in order], [k for _, k in order]), order, strict=True):
            members.setdefault(number, set()).add((frozenset(text), kind))
        return {frozenset(group) for group in members.values()}

    first = partition(texts)
    random.shuffle(texts)
    assert partition(texts) == first
    for one, kind in texts:
        for other, same in texts:
            a, b = frozenset(one), frozenset(other)
            if a and kind == same and len(a & b) >= 0.8 * len(a | b):
                assert any({(a, kind), (b, kind)} <= group for group in first)


def test_a_big_file_of_like_questions_takes_seconds() -> None:
    texts = [words(f"Where is my order {number}, which I paid on day {number % 30}?") for number in range(20_000)]
    assert len(set(groups(texts, ["a"] * len(texts)))) < 20_000


@pytest.mark.parametrize(
    ("header", "columns", "chosen"),
    [
        ("frage;ANTWORT", {}, ("frage", "ANTWORT", None)),
        ("這;那", {}, ("這", "那", None)),
        ("id;question;label;notes", {}, ("question", "label", None)),
        ("id;question;label;notes", {"answer": "notes", "facts": "id"}, ("question", "notes", "id")),
        ("question;question;answer", {}, ("question", "answer", None)),
    ],
)
def test_columns_are_found_or_named(header: str, columns: Any, chosen: Any) -> None:
    width = header.count(";") + 1
    rows = "".join(";".join([f"{n} {word}"] * width) + "\n" for n, word in enumerate(WORDS))
    imported = read_questions(f"{header}\n{rows}".encode(), columns, header=True, encoding=None)
    assert tuple(imported.columns.values()) == chosen
    assert imported.problem is None


def test_what_cannot_be_chosen_is_said() -> None:
    imported = read([("a", "b", "c"), ("1", "2", "3")])
    assert imported.problem is not None
    assert imported.problem.field == "question"
    assert str(imported.problem) == "name the column of the question in `question`; there are: a, b, c"
    assert imported.details()["rows"] == [{"line": 2, "cells": ["1", "2", "3"]}]
    with pytest.raises(NothingToImport, match="no column 'd'; there are: a, b, c"):
        read([("a", "b", "c"), ("1", "2", "3")], answer="d")
    few = read([("question", "answer"), ("a", "b"), ("", "c")])
    assert str(few.problem).startswith(
        "the file has 1 question, of which 1 differ; the 3 splits need as many. row 3: it has no"
    )


@pytest.mark.parametrize(
    ("line", "is_talk"),
    [
        ({"question": "a", "answer": "b", "label": "good"}, False),
        ({"prompt": "a", "completion": "b"}, False),
        ({"prompt": "a", "completion": "b", "label": "good"}, True),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, True),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], True),
    ],
)
def test_conversations_are_told_from_questions(line: Any, is_talk: bool) -> None:
    assert holds_conversations(json.dumps(line).encode()) == is_talk
    assert not holds_conversations(b"question,answer\n")
