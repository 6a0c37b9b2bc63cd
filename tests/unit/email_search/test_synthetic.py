"""Synthetic inboxes: reproducible, solvable, and of one split only."""

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Split
from learnloop_service.environment.email_search.inbox import Inbox
from learnloop_service.environment.email_search.synthetic import KINDS, World, address_of, make_world, parse_address
from learnloop_service.environment.invented_names import split_of
from learnloop_service.judges.reference import same_answer

SPLITS: tuple[Split, ...] = get_args(Split)
SEEDS = st.integers(-(2**40), 2**40)
_SENTENCES = [
    re.compile(re.escape(form).replace(r"\{p\}", r"(?P<p>\w+)").replace(r"\{v\}", r"(?P<v>[\w, ]+?)"))
    for kind in KINDS
    for form in kind.sentences
]


def words_and_values(world: World) -> tuple[set[str], set[str]]:
    """Every invented word, and every value, that the inbox says in any field or its question asks for."""
    words, values = {world.project}, {world.answer}
    for mail in world.emails:
        words.add(mail.id)
        for mailbox in (mail.sender, *mail.to):
            words |= set(re.findall(r"\w+", mailbox)) - {"example"}
        matches = [match for form in _SENTENCES for match in form.finditer(mail.body)]
        assert matches, mail.body
        words |= {match["p"] for match in matches}
        values |= {match["v"] for match in matches}
    return words, values


@given(SEEDS, st.integers(0, 10**9), st.sampled_from(SPLITS))
def test_every_name_and_value_is_of_the_inbox_s_split(seed: int, index: int, split: Split) -> None:
    words, values = words_and_values(make_world(split, seed, index))
    assert {split_of(word) for word in words} == {split}
    for value in values:
        # A person has two names; both are of the split.
        parts = [value] if re.search(r"\d", value) else value.split()
        assert {split_of(part) for part in parts} == {split}


@pytest.mark.parametrize("seed", range(5))
def test_held_out_inboxes_share_no_name_and_no_value_with_training(seed: int) -> None:
    everything: dict[Split, set[str]] = {}
    for split in SPLITS:
        worlds = [words_and_values(make_world(split, seed, index)) for index in range(60)]
        everything[split] = {text.lower() for words, values in worlds for text in words | values}
        assert len(everything[split]) > 500
    train, validation, test = (everything[split] for split in SPLITS)
    assert train.isdisjoint(validation | test)
    assert validation.isdisjoint(test)


@given(SEEDS, st.integers(0, 10**9), st.sampled_from(SPLITS))
def test_an_address_is_all_it_takes_to_make_the_inbox_again(seed: int, index: int, split: Split) -> None:
    world = make_world(split, seed, index)
    assert world.address == address_of(split, seed, index)
    key = parse_address(world.address)
    assert key == (split, seed, index)
    assert make_world(*key) == world


@pytest.mark.parametrize(
    "address",
    [
        *("", "test.0.17", "test.0.17@inbox.example.com", "xtest.0.17@inbox.example", "dev.0.17@inbox.example"),
        *("test.0@inbox.example", "test.0.-1@inbox.example", "test.0.1.2@inbox.example", "test.0.x@inbox.example"),
        *("test.٣.1@inbox.example", f"test.0.{'9' * 21}@inbox.example", "test.0.17@inbox.example\n"),
    ],
)
def test_what_is_no_address_is_none(address: str) -> None:
    assert parse_address(address) is None


@pytest.mark.parametrize("index", range(30))
def test_the_question_has_one_answer_in_one_mail(index: int) -> None:
    world = make_world("train", 7, index)
    assert 12 <= len(world.emails) <= 20
    assert len({mail.id[:2] for mail in world.emails}) == len(world.emails)
    assert [mail.sent_at for mail in world.emails] == sorted(mail.sent_at for mail in world.emails if mail.sent_at)
    assert world.project in world.question
    source = next(mail for mail in world.emails if mail.id == world.source_id)
    assert world.answer in source.body
    first_words = [re.split(r"(?<=[.?]) ", mail.body)[0] for mail in world.emails]
    stating = [text for text in first_words if world.project in text and world.keyword in text]
    assert [world.answer in text for text in stating] == [True]
    inbox = Inbox.in_memory(world.emails)
    assert world.source_id in [hit.id for hit in inbox.search([world.project, world.keyword])]
    assert same_answer(world.answer, world.scenario("train").reference["answer"])


def test_inboxes_differ() -> None:
    keys = [(split, seed, index) for split in SPLITS for seed in range(3) for index in range(5)]
    assert len({make_world(*key).question + make_world(*key).answer for key in keys}) == len(keys)
