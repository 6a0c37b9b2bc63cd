"""The sender and the day of an email that a question about it names: filters of a search."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from learnloop_service.environment.email_search.inbox import Email
from learnloop_service.environment.email_search.mail_addresses import people

QUOTED = re.compile(r'"[^"]*"')
"""Subjects and sentences, which can name people and days that have nothing to do with who sent the email, and when."""
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on the sender and the day of an email, and the words of the question that name them."""

    sender: str | None = None
    day: date | None = None
    words: tuple[str, ...] = ()


def filters_in(question: str, email: Email) -> Filters:
    """Return which of the email's sender and day the question names outside quotation marks."""
    unquoted = QUOTED.sub(" ", question)
    sender, named = next(((value, text) for text, value in _senders(email) if _names(unquoted, text)), (None, ""))
    day = email.sent_at.date() if email.sent_at else None
    written = next((text for text in _forms(day) if _names(unquoted, text)), "") if day else ""
    return Filters(sender, day if written else None, tuple(_WORD.findall(f"{named} {written}")))


def _senders(email: Email) -> Iterator[tuple[str, str]]:
    """Yield the texts that can name the sender, each with the value of the filter."""
    name, address = next(people(email.sender), ("", ""))
    local = address.partition("@")[0]
    yield from ((name, name), (address, address))
    if "." in local:
        yield local.replace(".", " "), local


def _forms(day: date) -> Iterator[str]:
    yield from (f"{day.day} {day:%B} {day.year}", f"{day:%B} {day.day}, {day.year}", day.isoformat())


def _names(question: str, text: str) -> bool:
    """Whether the question has the text as whole words."""
    pattern = rf"(?<!\w){re.escape(text)}(?!\w)"
    return _WORD.search(text) is not None and re.search(pattern, question, re.IGNORECASE) is not None
