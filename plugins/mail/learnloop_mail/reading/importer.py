"""Import of real mail into an inbox, with a report of what was imported, what was left out and why."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from time import monotonic

from learnloop_mail.reading.mail_files import BrokenMail, RawMail, raw_mails
from learnloop_mail.reading.mail_ids import MailIds
from learnloop_mail.reading.mail_message import DecodedMail, NotAMail, decode_mail
from learnloop_mail.reading.mime_parts import MailRefused
from learnloop_service.environment.email_search.inbox import Email, InboxError, write_inbox


class MailSourceError(Exception):
    """There is no mail to read: the file or folder does not exist or contains none."""


@dataclass(slots=True)
class ImportReport:
    """Numbers of mails. `read` counts the decoded ones: `imported` and `duplicates` together.

    The counts below `broken` are of imported mails; `attachments_skipped` counts attachments.
    """

    read: int = 0
    imported: int = 0
    duplicates: int = 0
    """Mails with the same Message-ID as an earlier one, also from an earlier import; without an id, with the same
    content."""
    broken: list[BrokenMail] = field(default_factory=list)
    attachments_skipped: int = 0
    html_only: int = 0
    truncated: int = 0
    """Mails longer than the limits of `mail_message` or `mail_files`; only their beginning is imported."""
    undated: int = 0
    """Mails without a time in Date, Received or envelope."""
    damaged: int = 0
    """Mails with bytes that fit no character set; U+FFFD stands for each."""
    seconds: float = 0.0


def import_mail(sources: Sequence[Path], inbox: Path) -> ImportReport:
    """Add all mail under the sources to the inbox file, which is created if needed.

    All or nothing: on an error the inbox is unchanged. A broken mail is not an error; the report counts it. Raises
    MailSourceError, InboxError.
    """
    started = monotonic()
    report = ImportReport()
    emails = read_mail(sources, report, MailIds(_existing_ids(inbox)))
    first = next(emails, None)
    if first is not None:
        report.imported = write_inbox(inbox, chain([first], emails))
    # MailIds does not recognise a mail whose id in the inbox it did not assign; the inbox itself drops such duplicates.
    report.duplicates = report.read - report.imported
    report.seconds = monotonic() - started
    return report


def read_mail(sources: Sequence[Path], report: ImportReport, ids: MailIds | None = None) -> Iterator[Email]:
    """Yield all mail under the sources that is new to `ids`, and count it in the report.

    Raises MailSourceError: at the start if a source does not exist, at the end if there was no mail.
    """
    for source in sources:
        try:
            source.stat()
        except OSError as error:
            raise MailSourceError(f"cannot read {source}: {error.strerror}") from error
    yield from _emails(sources, ids or MailIds(), report)
    if not report.read:
        raise MailSourceError(_no_mail(sources, report.broken))


def _no_mail(sources: Sequence[Path], broken: list[BrokenMail]) -> str:
    places = ", ".join(map(str, sources))
    reasons = "; ".join(f"{mail.file}: {mail.reason}" for mail in broken[:3])
    return f"no mail in {places}" + (f" ({reasons})" if reasons else "")


def _existing_ids(inbox: Path) -> list[tuple[str, str]]:
    """Return the ids and Message-IDs that are already in the inbox."""
    if not inbox.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{inbox.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT id, message_id FROM email").fetchall()
    except sqlite3.Error as error:
        raise InboxError(f"cannot read inbox {inbox}: {error}") from error


def _emails(sources: Sequence[Path], ids: MailIds, report: ImportReport) -> Iterator[Email]:
    """Yield new mails and count them in the report."""
    for raw in chain.from_iterable(map(raw_mails, sources)):
        if isinstance(raw, BrokenMail):
            report.broken.append(raw)
            continue
        try:
            mail = decode_mail(raw.data, raw.envelope)
        except (NotAMail, MailRefused) as error:
            report.broken.append(_broken(raw, str(error)))
            continue
        except Exception as error:  # A hostile mail can raise anything in Python's parser.
            report.broken.append(_broken(raw, f"{type(error).__name__}: {error}"))
            continue
        report.read += 1
        message_id = mail.message_id or _content_id(mail)
        id = ids.claim(message_id)
        if id is None:
            continue
        report.attachments_skipped += mail.body.attachments
        report.html_only += mail.body.html and not mail.body.plain
        report.truncated += mail.body.truncated or raw.cut
        report.undated += mail.sent_at is None
        report.damaged += "\ufffd" in f"{mail.subject}{mail.body.text}"
        yield Email(
            id=id,
            message_id=message_id,
            sender=mail.sender,
            to=mail.to,
            sent_at=mail.sent_at,
            subject=mail.subject,
            body=mail.body.text,
            cc=mail.cc,
            bcc=mail.bcc,
        )


def _broken(raw: RawMail, reason: str) -> BrokenMail:
    return BrokenMail(raw.file, reason, raw.number, raw.offset)


def _content_id(mail: DecodedMail) -> str:
    """Return a Message-ID for a mail without one: equal for equal content."""
    content = (mail.sender, mail.to, mail.cc, mail.sent_at, mail.subject, mail.body.text)
    return f"<{blake2b(repr(content).encode(), digest_size=16).hexdigest()}@no-message-id.invalid>"
