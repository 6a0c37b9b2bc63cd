"""Questions about an imported inbox, from their file to scenarios."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.email_search.questions import ENOUGH, BadQuestion, draw, read_questions
from learnloop_service.environment.invented_names import split_of


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is number {n}?", "answer": f"{n}", "source_ids": [f"m{n}"]} for n in range(count)]


def read(path: Path, *lines: Any) -> list[Scenario]:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return read_questions(path, "me@inbox.example", "2026-03-14", lambda source: None if source == "gone" else source)


def scenario(number: int) -> Scenario:
    return Scenario(f"q:{number}", split_of(f"{number}"), {})


def test_a_line_becomes_a_scenario(tmp_path: Path) -> None:
    optional = {"inbox_address": "you@x.example", "query_date": "2001-05-15"}
    first, second = read(tmp_path / "a.jsonl", rows(1)[0], "", {**rows(2)[1], "source_ids": [7], **optional})
    assert first.task == {
        "question": "What is number 0?",
        "inbox_address": "me@inbox.example",
        "query_date": "2026-03-14",
    }
    assert first.reference == {"answer": "0", "source_ids": ["m0"]}
    assert second.task == {"question": "What is number 1?", **optional}
    assert second.reference["source_ids"] == ["7"]
    assert [scenario.id for scenario in (first, second)] == ["a:1", "a:3"]


def test_more_questions_move_none_to_another_split(tmp_path: Path) -> None:
    few, many = read(tmp_path / "a.jsonl", *rows(30)), read(tmp_path / "b.jsonl", *reversed(rows(90)))
    splits = {question.task["question"]: question.split for question in many}
    assert all(splits[question.task["question"]] == question.split for question in few)
    assert set(splits.values()) == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "'question'"),
        ("3", "'question'"),
        ({}, "'question' must be a non-empty str"),
        ({**rows(1)[0], "answer": ""}, "'answer' must be a non-empty str"),
        ({**rows(1)[0], "answer": 3}, "'answer' must be a non-empty str"),
        ({**rows(1)[0], "source_ids": "m0"}, "'source_ids' must be a non-empty list"),
        ({**rows(1)[0], "source_ids": []}, "'source_ids' must be a non-empty list"),
        ({**rows(1)[0], "source_ids": ["m0", "gone"]}, "no email of the inbox has the id or Message-ID 'gone'"),
        ({**rows(1)[0], "query_date": None}, "'query_date' must be a str"),
        ({**rows(1)[0], "inbox_address": 3}, "'inbox_address' must be a str"),
    ],
)
def test_an_unfit_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(BadQuestion, match=f"^a.jsonl line 2: .*{message}"):
        read(tmp_path / "a.jsonl", rows(1)[0], line)


POOL = [scenario(number) for number in range(60)]
TRAIN = [question for question in POOL if question.split == "train"]


@given(st.integers(0, 200), st.lists(st.integers(0, 70), max_size=6), st.integers())
def test_drawing_in_parts_is_drawing_at_once(start: int, counts: list[int], seed: int) -> None:
    at_once = list(draw(POOL, "train", sum(counts), seed, start))
    starts = [start + sum(counts[:index]) for index in range(len(counts))]
    parts = [draw(POOL, "train", count, seed, begin) for count, begin in zip(counts, starts, strict=True)]
    assert list(chain(*parts)) == at_once
    assert len(at_once) == sum(counts)


@given(st.integers(), st.integers(0, 3))
def test_no_question_comes_again_before_all_have_come(seed: int, number: int) -> None:
    whole = list(draw(POOL, "train", len(TRAIN), seed, number * len(TRAIN)))
    assert Counter(question.id for question in whole) == Counter(question.id for question in TRAIN)


def test_each_pass_and_each_seed_has_an_order_of_its_own() -> None:
    orders = [
        tuple(question.id for question in draw(POOL, "train", len(TRAIN), seed, number * len(TRAIN)))
        for seed in range(3)
        for number in range(3)
    ]
    assert len(set(orders)) == 9


def test_a_split_without_a_question_is_reported_with_what_is_needed() -> None:
    needed = r"train, validation and test, and has 1 for train, 0 for validation, 0 for test; .* add more: 50"
    with pytest.raises(ValueError, match=needed):
        list(draw([Scenario("q", "train", {})], "test", 1, 0, 0))


def test_so_many_questions_are_nearly_always_enough() -> None:
    empty = 0
    for number in range(300):
        splits = {split_of(f"{number}: What is number {n}?") for n in range(ENOUGH)}
        empty += len(splits) < 3
    assert empty / 300 < 0.03
