"""Sets of questions: splits that share nothing."""

from collections import Counter
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from learnloop_mail.preparation.question_sets import (
    Question,
    Selection,
    SplitCounts,
    halve,
    question_set,
    split_by_topic,
)
from learnloop_service.environment.base import Split

SPLITS: tuple[Split, ...] = get_args(Split)
few = st.integers(0, 6)
any_question = st.builds(
    lambda id, words, sources: Question(f"{id}", f"What about {words}?", "this", tuple(map(str, sources))),
    st.integers(),
    few,
    st.sets(few, min_size=1, max_size=3),
)
sets = st.fixed_dictionaries({split: st.lists(any_question, max_size=12) for split in SPLITS})


@given(sets, st.none() | st.integers(1, 5), st.none() | st.integers(0, 3))
def test_no_email_and_no_question_is_in_two_splits(
    splits: dict[Split, list[Question]], limit: int | None, seed: int | None
) -> None:
    counts = SplitCounts()
    rows = question_set(splits, Selection(limit, limit, seed), lambda source: source != "0", counts)
    for key in (lambda row: row["source_ids"], lambda row: [row["question"]]):
        values_by_split = {
            split: {value for row in rows if row["split"] == split for value in key(row)} for split in SPLITS
        }
        assert sum(map(len, values_by_split.values())) == len(set().union(*values_by_split.values()))
    assert all("0" not in row["source_ids"] for row in rows)
    assert all(size <= (limit or 99) for size in Counter(row["split"] for row in rows).values())
    left_out = counts.without_source + counts.repeated + counts.of_other_splits + counts.beyond_limit
    assert len(rows) + left_out == sum(map(len, splits.values()))


@given(sets, st.integers(1, 5))
def test_a_smaller_set_is_the_beginning_of_a_larger_one(splits: dict[Split, list[Question]], limit: int) -> None:
    def of_split(split: Split, limit: int | None) -> list[str]:
        rows = question_set(splits, Selection(limit, None, 1), lambda _: True, SplitCounts())
        return [row["id"] for row in rows if row["split"] == split]

    assert of_split("train", limit) == of_split("train", None)[:limit]
    assert of_split("test", limit) == of_split("test", None)


def test_what_is_held_out_stays() -> None:
    same = {split: [Question(split, "Who leads Velmor?", "Ann", ("<1@x>",))] for split in SPLITS}
    counts = SplitCounts()
    assert [row["id"] for row in question_set(same, Selection(), lambda _: True, counts)] == ["test"]
    assert counts.of_other_splits == 2


def test_a_topic_is_for_one_split_and_so_is_an_email() -> None:
    questions = [Question(f"{n}", f"Q{n}?", "a", (f"<{n}@x>",), topic=f"topic {n % 40}") for n in range(400)]
    splits = split_by_topic(questions)
    topics = [{question.topic for question in splits[split]} for split in SPLITS]
    assert sum(map(len, topics)) == 40
    assert all(topics)
    halves = halve([Question(f"{n}", f"Q{n}?", "a", (f"<{n % 50}@x>",)) for n in range(100)])
    assert {question.sources for question in halves["test"]}.isdisjoint(
        question.sources for question in halves["validation"]
    )
    assert min(map(len, halves.values())) > 20
