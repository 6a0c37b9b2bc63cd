"""Questions about the emails of an inbox, made from templates: without a language model, and the same for the same
seed.

Each question names its email by subject, sender or day, so that only one email answers it; emails that agree in these
are skipped. The answer is the sender, the day, or a value from one of its sentences.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from learnloop_mail.preparation.question_sets import Question
from learnloop_service.environment.email_search.inbox import Email, Inbox
from learnloop_service.environment.email_search.mail_addresses import people

GAP = "_____"
_VALUE_QUESTION = 'In the email "{subject}" from {sender}, what stands in place of {gap} in "{sentence}"?'
_DAY_QUESTION = 'On which day did {sender} send the email "{subject}"?'
_SENDER_QUESTION = 'Who sent the email "{subject}" on {day}?'
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_VALUE = re.compile(
    rf"\b\d{{1,2}} {_MONTH}(?: \d{{4}})?\b|\b{_MONTH} \d{{1,2}}(?:, \d{{4}})?\b|\b\d{{4}}-\d{{2}}-\d{{2}}\b"
    r"|\b\d{1,2}:\d{2}\b|(?<![\w.,$€£/-])[$€£]?\d+(?:,\d{3})*(?:\.\d+)*%?(?![\w/-]|[.,]\d)"
)
"""Matches dates, times, amounts, and numbers such as those of versions."""
_QUOTED = re.compile(r"^\s*(?:[>|:]|[A-Z]{1,4}>)")
_SIGNATURE = re.compile(r"^-- ?$|^-{2,} ?(?:Original|Forwarded) ?(?:M|m)essage", re.MULTILINE)
_PREFIX = re.compile(r"^(?:\s*(?:re|fwd?|aw|wg|sv)\s*(?:\[\d+\])?:|\s*\[[^\]]{1,40}\])+", re.IGNORECASE)
_MIN_WORDS, _MAX_WORDS = 6, 30
_MAX_SUBJECT = 150
_PER_EMAIL = 2


@dataclass(slots=True)
class TemplateCounts:
    """How many emails were examined, and how many gave a question."""

    looked_at: int = 0
    asked_about: int = 0


def template_questions(inbox: Inbox, count: int, seed: int, counts: TemplateCounts) -> Iterator[Question]:
    """Yield up to `count` questions about emails in random order; fewer if the inbox is exhausted.

    A smaller count yields a prefix of what a larger one yields.
    """
    total = 0
    for email in emails_in_random_order(inbox, seed):
        counts.looked_at += 1
        questions = list(_about(inbox, email, Random(f"{seed}:{email.message_id}")))[: min(_PER_EMAIL, count - total)]
        counts.asked_about += bool(questions)
        total += len(questions)
        yield from questions
        if total >= count:
            return


def emails_in_random_order(inbox: Inbox, seed: int) -> Iterator[Email]:
    """Yield every email once, in an order drawn from the seed."""
    numbers = inbox.numbers()
    Random(f"emails:{seed}").shuffle(numbers)
    for number in numbers:
        yield inbox.at(number)


def topic_of(email: Email) -> str:
    """Return the same topic for an email and its replies: they quote each other, so they belong in one split."""
    return _PREFIX.sub("", email.subject).strip().casefold() or email.message_id


def _about(inbox: Inbox, email: Email, rng: Random) -> Iterator[Question]:
    sender = _name(email.sender)
    subject = email.subject
    if not sender or not _PREFIX.sub("", subject).strip() or len(subject) > _MAX_SUBJECT or '"' in subject:
        return
    day = f"{email.sent_at:%-d %B %Y}" if email.sent_at else None
    if inbox.is_only_one(subject, sender=email.sender):
        if (gap_sentence := _sentence(email.body, rng)) is not None:
            sentence, value = gap_sentence
            yield _question(
                email, 0, _VALUE_QUESTION.format(subject=subject, sender=sender, gap=GAP, sentence=sentence), value
            )
        if day is not None:
            yield _question(email, 1, _DAY_QUESTION.format(subject=subject, sender=sender), day)
    if email.sent_at is not None and inbox.is_only_one(subject, day=email.sent_at.date()):
        yield _question(email, 2, _SENDER_QUESTION.format(subject=subject, day=day), sender)


def _question(email: Email, number: int, question: str, answer: str) -> Question:
    return Question(f"{email.id}-{number}", question, answer, (email.message_id,), topic=topic_of(email))


def _name(sender: str) -> str:
    name, address = next(people(sender), ("", ""))
    return name or address


def _sentence(body: str, rng: Random) -> tuple[str, str] | None:
    """Return a sentence in which a gap replaces its only value, and that value. None if no sentence has a single
    value."""
    new_text = _SIGNATURE.split(body, maxsplit=1)[0]
    lines = "\n".join("" if _QUOTED.match(line) else line.strip() for line in new_text.splitlines())
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", lines))
    sentences = [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)]
    gap_sentences = [
        (f"{sentence[: values[0].start()]}{GAP}{sentence[values[0].end() :]}", values[0][0])
        for sentence in sentences
        if _MIN_WORDS <= len(sentence.split()) <= _MAX_WORDS
        and '"' not in sentence
        and len(values := list(_VALUE.finditer(sentence))) == 1
        and new_text.count(values[0][0]) == 1
    ]
    return rng.choice(gap_sentences) if gap_sentences else None
