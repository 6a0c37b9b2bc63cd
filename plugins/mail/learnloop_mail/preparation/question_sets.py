"""Sets of questions about one inbox whose splits share no email and no question."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import get_args

from learnloop_service.environment.base import Json, Split
from learnloop_service.environment.invented_names import split_of
from learnloop_service.environment.words import words_of

HELD_OUT_FIRST: Sequence[Split] = ("test", "validation", "train")
"""Order in which splits claim a shared email or question. Held-out splits are first, so that changing the training set
changes no evaluation figure."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the emails that its answer rests on. `sources` are ids or Message-IDs of emails in the inbox."""

    id: str
    question: str
    answer: str
    sources: tuple[str, ...]
    inbox_address: str | None = None
    query_date: str | None = None
    topic: str | None = None
    """All questions of one topic go to one split. None: each email is a topic."""

    def row(self, split: Split) -> dict[str, Json]:
        """Return the question in the form in which scenarios are stored."""
        optional = {"inbox_address": self.inbox_address, "query_date": self.query_date}
        return {
            "id": self.id,
            "split": split,
            "question": self.question,
            "answer": self.answer,
            "source_ids": list(self.sources),
            **{key: value for key, value in optional.items() if value is not None},
        }


@dataclass(slots=True)
class SplitCounts:
    """How many questions were put into splits, and how many were left out for which reason."""

    without_source: int = 0
    """They rest on an email that the inbox does not contain."""
    repeated: int = 0
    """They repeat a question about the same inbox within a split."""
    of_other_splits: int = 0
    """They share an email, or all their words, with a question of a held-out split."""
    beyond_limit: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """How many questions each split gets, and which. None: all, in the order of the source."""

    limit: int | None = None
    held_out_limit: int | None = None
    """Most questions for validation and for test, each."""
    shuffle_seed: int | None = None


def split_by_topic(questions: Iterable[Question]) -> dict[Split, list[Question]]:
    """Assign 80, 10 and 10 percent of the topics to train, validation and test; adding questions moves none to another
    split."""
    by_split: dict[Split, list[Question]] = {split: [] for split in get_args(Split)}
    for question in questions:
        by_split[split_of(topic_of_question(question))].append(question)
    return by_split


def topic_of_question(question: Question) -> str:
    """Return what decides the question's split: its topic, or its first email if it has none."""
    return question.topic or min(question.sources)


def halve(held_out: Iterable[Question]) -> dict[Split, list[Question]]:
    """Make validation and test from a dataset's only held-out split."""
    halves: dict[Split, list[Question]] = {"validation": [], "test": []}
    for question in held_out:
        halves["test" if zlib.crc32(min(question.sources).encode()) % 2 else "validation"].append(question)
    return halves


def question_set(
    splits: Mapping[Split, Sequence[Question]],
    selection: Selection,
    has_email: Callable[[str], bool],
    counts: SplitCounts,
) -> list[dict[str, Json]]:
    """Return the rows of a set. No email and no question of a split occurs in another one, whatever the source says."""
    rows: list[dict[str, Json]] = []
    sources_elsewhere, words_elsewhere = set[str](), set[str]()
    for split in HELD_OUT_FIRST:
        pool = list(splits.get(split, ()))
        if selection.shuffle_seed is not None:
            Random(f"{selection.shuffle_seed}:{split}").shuffle(pool)
        sources, words = set[str](), set[str]()
        chosen: list[dict[str, Json]] = []
        limit = selection.limit if split == "train" else selection.held_out_limit
        for question in pool:
            identity = f"{question.inbox_address}:{words_of(question.question)}"
            if not sources_elsewhere.isdisjoint(question.sources) or identity in words_elsewhere:
                counts.of_other_splits += 1
            elif identity in words:
                counts.repeated += 1
            elif not all(map(has_email, question.sources)):
                counts.without_source += 1
            else:
                # Count questions beyond the limit as well: a smaller set must not change the contents of the other
                # splits.
                sources.update(question.sources)
                words.add(identity)
                chosen.append(question.row(split))
        counts.beyond_limit += max(0, len(chosen) - limit) if limit is not None else 0
        rows += chosen[:limit]
        sources_elsewhere |= sources
        words_elsewhere |= words
    return rows
