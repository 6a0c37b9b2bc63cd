"""Emails and questions in the layout of ART-E's training data, and the filters that ART-E applied.

The layout is that of `corbt/enron-emails` and `corbt/enron_emails_sample_questions` on the Hugging Face hub; the
filters are those of ART-E (https://openpipe.ai/blog/art-e-mail-agent).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime

from learnloop_mail.preparation.question_sets import Question
from learnloop_mail.preparation.table_files import DatasetError
from learnloop_mail.reading.mail_ids import MailIds
from learnloop_mail.reading.mail_text import clean_line, clean_text
from learnloop_service.environment.base import Json
from learnloop_service.environment.email_search.inbox import Email

EMAIL_COLUMNS = ("message_id", "subject", "from", "to", "cc", "bcc", "date", "body")
QUESTION_COLUMNS = ("id", "question", "answer", "message_ids", "inbox_address", "query_date")
OPTIONAL_QUESTION_COLUMNS = ("how_realistic",)
KNOWN_BAD_QUESTIONS = (49, 101, 129, 171, 208, 266, 327)
"""Ids of questions that ART-E's authors found to be ambiguous or contradicted by other emails."""


@dataclass(slots=True)
class RowCounts:
    """Number of emails read from a dataset, and of those left out."""

    read: int = 0
    unidentified: int = 0
    """Left out because they have no Message-ID, which questions refer to."""
    undated: int = 0


def emails(rows: Iterable[Mapping[str, Json]], counts: RowCounts) -> Iterator[Email]:
    """Yield the emails of the rows, one for each Message-ID. Raises DatasetError for a malformed row."""
    ids = MailIds()
    for row in rows:
        counts.read += 1
        message_id = _text(row, "message_id", counts.read, "email").strip()
        if not message_id:
            counts.unidentified += 1
        elif (id := ids.claim(message_id)) is not None:
            mail = _email(row, id, message_id, counts.read)
            counts.undated += mail.sent_at is None
            yield mail


def _email(row: Mapping[str, Json], id: str, message_id: str, number: int) -> Email:
    to, cc, bcc = (_people(row, key, number) for key in ("to", "cc", "bcc"))
    return Email(
        id=id,
        message_id=clean_line(message_id),
        sender=clean_line(_text(row, "from", number, "email")),
        to=to,
        cc=cc,
        bcc=bcc,
        sent_at=_moment(row["date"], number),
        subject=clean_line(_text(row, "subject", number, "email")),
        body=clean_text(_text(row, "body", number, "email")),
    )


def _text(row: Mapping[str, Json], key: str, number: int, kind: str) -> str:
    value = row[key]
    if value is not None and not isinstance(value, str):
        raise DatasetError(f"{kind} {number}: {key!r} must be a text, not {type(value).__name__}")
    return value or ""


def _people(row: Mapping[str, Json], key: str, number: int) -> tuple[str, ...]:
    value = row[key] if row[key] is not None else []
    if not isinstance(value, list) or not all(isinstance(address, str) for address in value):
        raise DatasetError(f"email {number}: {key!r} must be a list of addresses")
    return tuple(filter(None, map(clean_line, value)))


def _moment(value: Json, number: int) -> datetime | None:
    """Return a timestamp; in JSON, an ISO date or seconds since the epoch. Times without a zone are UTC."""
    if value is None or value == "":
        return None
    moment = value if isinstance(value, datetime) else None
    with suppress(ValueError, OverflowError, OSError):
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value, UTC)
    if moment is None:
        raise DatasetError(f"email {number}: 'date' must be a timestamp, not {value!r}")
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class QuestionFilter:
    """Limits on the questions in a set; None means no limit."""

    inbox: str | None = None
    """Include only questions about the inbox of this address."""
    max_messages: int | None = 1
    """Most emails that an answer can rest on."""
    excluded: Sequence[int] = KNOWN_BAD_QUESTIONS
    min_realism: float | None = None
    """Lowest accepted `how_realistic` rating."""


@dataclass(slots=True)
class QuestionCounts:
    """How many questions of a dataset passed the filter, and how many failed which part of it."""

    read: int = 0
    of_other_inboxes: int = 0
    too_many_messages: int = 0
    excluded: int = 0
    unrealistic: int = 0


def questions(
    split: str, rows: Iterable[Mapping[str, Json]], filters: QuestionFilter, counts: QuestionCounts
) -> Iterator[Question]:
    """Yield the questions that pass the filter, and count all. Raises DatasetError for a malformed row."""
    inbox = filters.inbox.casefold() if filters.inbox else None
    for number, row in enumerate(rows, start=1):
        counts.read += 1
        question = _question(split, row, number)
        if inbox is not None and str(question.inbox_address).casefold() != inbox:
            counts.of_other_inboxes += 1
        elif filters.max_messages is not None and len(question.sources) > filters.max_messages:
            counts.too_many_messages += 1
        elif row["id"] in filters.excluded:
            counts.excluded += 1
        elif filters.min_realism is not None and _realism(row, number) < filters.min_realism:
            counts.unrealistic += 1
        else:
            yield question


def _question(split: str, row: Mapping[str, Json], number: int) -> Question:
    id, sources = row["id"], row["message_ids"]
    if not isinstance(id, int):
        raise DatasetError(f"question {number}: 'id' must be a whole number, not {id!r}")
    if not isinstance(sources, list) or not sources or not all(isinstance(source, str) for source in sources):
        raise DatasetError(f"question {number}: 'message_ids' must be a list of Message-IDs")
    question, answer, address = (_filled(row, key, number) for key in ("question", "answer", "inbox_address"))
    return Question(
        id=f"{split}-{id}",
        question=question,
        answer=answer,
        sources=tuple(map(clean_line, sources)),
        inbox_address=address,
        query_date=_day(row["query_date"], number),
    )


def _filled(row: Mapping[str, Json], key: str, number: int) -> str:
    text = clean_text(_text(row, key, number, "question")).strip()
    if not text:
        raise DatasetError(f"question {number}: {key!r} is empty")
    return text


def _day(value: Json, number: int) -> str:
    if isinstance(value, date):  # A datetime is also a date.
        return f"{value:%Y-%m-%d}"
    try:
        return datetime.fromisoformat(str(value)).date().isoformat()
    except ValueError:
        raise DatasetError(f"question {number}: 'query_date' must be a date, not {value!r}") from None


def _realism(row: Mapping[str, Json], number: int) -> float:
    value = row.get("how_realistic")
    if not isinstance(value, (int, float)):
        raise DatasetError(f"question {number}: 'how_realistic' must be a number to choose by, not {value!r}")
    return float(value)
