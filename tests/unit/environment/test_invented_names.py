"""Names of a split belong to it alone, and are drawn once."""

from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Split
from learnloop_service.environment.invented_names import Names, split_of

SPLITS: tuple[Split, ...] = get_args(Split)
KINDS = ("word", "capitalised", "project", "company", "date", "amount")


@given(st.integers(), st.sampled_from(SPLITS), st.sampled_from(KINDS))
def test_what_is_drawn_is_of_the_split(seed: int, split: Split, kind: str) -> None:
    names = Names(Random(seed), split)
    drawn = [getattr(names, kind)() for _ in range(8)]
    assert {split_of(value) for value in drawn} == {split}
    assert len(set(drawn)) == len(drawn)


@given(st.integers(), st.sampled_from(SPLITS))
def test_both_names_of_a_person_are_of_the_split(seed: int, split: Split) -> None:
    first, last = Names(Random(seed), split).person().split()
    assert split_of(first) == split_of(last) == split
    assert first != last


@given(st.text())
def test_a_value_is_of_one_split_however_it_is_written(text: str) -> None:
    assert split_of(text) in SPLITS
    assert split_of(text.lower()) == split_of(text)


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_has_dates_and_amounts_enough_for_a_world(split: Split) -> None:
    """A world has at most 20 of each; drawing one more than there are would never end."""
    names = Names(Random(0), split)
    assert len({names.date() for _ in range(20)}) == 20
    assert len({names.amount() for _ in range(20)}) == 20


def test_most_names_are_for_training() -> None:
    rng = Random(1)
    splits = [split_of(f"{rng.random()}") for _ in range(5_000)]
    assert splits.count("train") / 5_000 == pytest.approx(0.8, abs=0.03)
    assert splits.count("test") / 5_000 == pytest.approx(0.1, abs=0.02)


def test_the_same_generator_gives_the_same_names() -> None:
    one, other = Names(Random(3), "test"), Names(Random(3), "test")
    assert [one.person(), one.amount(), one.choice("abc")] == [other.person(), other.amount(), other.choice("abc")]
