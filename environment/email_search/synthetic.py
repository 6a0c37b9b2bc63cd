"""Synthetic inboxes: each a new world of invented projects, people and values, with one question.

An inbox is regenerated from its address alone (`test.0.17@inbox.example` is number 17 of seed 0 in the split `test`),
so nothing is stored. Each mail states a fact about a project, and some also a decoy: the same kind of fact about
another project. Subjects name project and kind; the value is only in the body, so a hit must be opened.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import get_args

from learnloop_service.environment.base import Scenario, Split
from learnloop_service.environment.email_search.inbox import Email
from learnloop_service.environment.invented_names import Names

DOMAIN = "inbox.example"
_ADDRESS = re.compile(r"(train|validation|test)\.(-?[0-9]{1,20})\.([0-9]{1,20})@inbox\.example")
_EPOCH = datetime(2026, 1, 5, 9, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FactKind:
    """A kind of fact: the keyword in its mails, the sentences that state it, and the question that asks for it."""

    keyword: str
    value: str
    """The method of `Names` that draws a value."""
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


_DATE_QUESTIONS = ("When is the {k} of {p}?", "On which day is the {k} of {p}?")

KINDS = (
    FactKind("kickoff", "date", ("The kickoff of {p} is on {v}.", "We hold the {p} kickoff on {v}."), _DATE_QUESTIONS),
    FactKind("deadline", "date", ("The deadline of {p} is {v}.", "{p} has its deadline on {v}."), _DATE_QUESTIONS),
    FactKind("review", "date", ("The review of {p} is on {v}.", "We do the {p} review on {v}."), _DATE_QUESTIONS),
    FactKind("launch", "date", ("The launch of {p} is on {v}.", "{p} goes to launch on {v}."), _DATE_QUESTIONS),
    FactKind(
        "budget",
        "amount",
        ("The budget of {p} is {v}.", "{p} has a budget of {v}."),
        ("What is the budget of {p}?", "How large is the budget of {p}?"),
    ),
    FactKind(
        "invoice",
        "amount",
        ("The invoice for {p} is {v}.", "We got the {p} invoice of {v}."),
        ("How much is the invoice for {p}?", "What does the invoice for {p} come to?"),
    ),
    FactKind(
        "lead",
        "person",
        ("The lead of {p} is {v}.", "{v} is the lead of {p}."),
        ("Who is the lead of {p}?", "Which person is the lead of {p}?"),
    ),
    FactKind(
        "contact",
        "person",
        ("The contact for {p} is {v}.", "Your contact for {p} is {v}."),
        ("Who is the contact for {p}?", "Whom do we contact about {p}?"),
    ),
    FactKind(
        "vendor",
        "company",
        ("The vendor of {p} is {v}.", "{v} is the vendor for {p}."),
        ("Which company is the vendor of {p}?", "Who is the vendor for {p}?"),
    ),
    FactKind(
        "venue",
        "company",
        ("The venue of {p} is {v}.", "{p} meets at the venue {v}."),
        ("What is the venue of {p}?", "Which venue does {p} have?"),
    ),
    FactKind(
        "code",
        "capitalised",
        ("The code of {p} is {v}.", "Use the code {v} for {p}."),
        ("What is the code of {p}?", "Which code does {p} use?"),
    ),
)
_FILLERS = ("Thanks for your help.", "Please tell the team.", "More next week.", "Let me know if this is a problem.")


@dataclass(frozen=True, slots=True)
class World:
    """One inbox with its one question: `keyword`, the kind of fact, of `project`, answered by mail `source_id`."""

    address: str
    emails: tuple[Email, ...]
    project: str
    keyword: str
    question: str
    answer: str
    source_id: str
    query_date: str

    def scenario(self, split: Split) -> Scenario:
        """Return the question as a scenario."""
        return Scenario(
            id=self.address,
            split=split,
            task={"question": self.question, "inbox_address": self.address, "query_date": self.query_date},
            reference={"answer": self.answer, "source_ids": [self.source_id]},
        )


def address_of(split: Split, seed: int, index: int) -> str:
    """Return the address that names one synthetic inbox."""
    return f"{split}.{seed}.{index}@{DOMAIN}"


def parse_address(address: str) -> tuple[Split, int, int] | None:
    """Return split, seed and index of a synthetic inbox's address; None for any other address."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    split = next(name for name in get_args(Split) if name == match[1])
    return split, int(match[2]), int(match[3])


@lru_cache(maxsize=256)
def make_world(split: Split, seed: int, index: int) -> World:
    """Generate the inbox of that split, seed and index: 12 to 20 mails about 4 or 5 projects."""
    rng = Random(f"email_search:{split}:{seed}:{index}")
    names = Names(rng, split)
    projects = [names.project() for _ in range(rng.randint(4, 5))]
    domain = f"{names.company().lower()}.example"
    people = [names.person() for _ in range(5)]
    facts = [
        (project, kind, getattr(names, kind.value)())
        for project in projects
        for kind in rng.sample(KINDS, rng.randint(3, 4))
    ]
    rng.shuffle(facts)
    emails = tuple(_emails(rng, names, facts, people, domain))
    target = rng.randrange(len(facts))
    project, kind, answer = facts[target]
    return World(
        address=address_of(split, seed, index),
        emails=emails,
        project=project,
        keyword=kind.keyword,
        question=rng.choice(kind.questions).format(p=project, k=kind.keyword),
        answer=answer,
        source_id=emails[target].id,
        query_date=(_EPOCH + timedelta(days=rng.randint(40, 300))).date().isoformat(),
    )


def _emails(
    rng: Random, names: Names, facts: list[tuple[str, FactKind, str]], people: list[str], domain: str
) -> Iterator[Email]:
    onsets: set[str] = set()
    sent_at = _EPOCH
    for project, kind, value in facts:
        sentences = [rng.choice(kind.sentences).format(p=project, v=value)]
        if rng.random() < 0.35:
            decoy = rng.choice([fact for fact in facts if fact[0] != project])
            sentences.append(rng.choice(decoy[1].sentences).format(p=decoy[0], v=decoy[2]))
        if rng.random() < 0.5:
            sentences.append(rng.choice(_FILLERS))
        sender, receiver = rng.sample(people, 2)
        sent_at += timedelta(minutes=rng.randint(30, 2000))
        # Ids get different beginnings, because similar ones would only test how well a small model copies.
        while (id := names.word())[:2] in onsets:
            pass
        onsets.add(id[:2])
        yield Email(
            id=id,
            message_id=f"<{id}.{sent_at:%m%d%H%M}@{domain}>",
            sender=_mailbox(sender, domain),
            to=(_mailbox(receiver, domain),),
            sent_at=sent_at,
            subject=f"{project} {kind.keyword}" if rng.random() < 0.8 else f"About {project}",
            body=" ".join(sentences),
        )


def _mailbox(person: str, domain: str) -> str:
    return f"{person} <{person.split()[0].lower()}@{domain}>"
