"""A filter for the emails of a source that are put into an inbox."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from learnloop_service.environment.email_search.inbox import Email
from learnloop_service.environment.email_search.mail_addresses import people


@dataclass(frozen=True, slots=True)
class MailFilter:
    """Limits on the emails of an inbox; None means no limit."""

    inbox: str | None = None
    """Include only emails from or to this address."""
    max_emails: int | None = None
    max_body_characters: int | None = None
    max_recipients: int | None = None
    drop_copies: bool = False
    """Keep only one of the emails with the same sender, subject and body."""


@dataclass(slots=True)
class FilterCounts:
    """How many emails of a source passed, and how many failed which part of the filter."""

    kept: int = 0
    of_others: int = 0
    """Neither from nor to the wanted inbox."""
    too_long: int = 0
    too_many_recipients: int = 0
    copies: int = 0


def filtered(emails: Iterable[Email], filters: MailFilter, counts: FilterCounts) -> Iterator[Email]:
    """Yield the emails that pass, and count all."""
    inbox = filters.inbox.casefold() if filters.inbox else None
    contents = set[bytes]()
    for mail in emails:
        recipients = (*mail.to, *mail.cc, *mail.bcc)
        if inbox is not None and inbox not in (
            address.casefold() for field in (mail.sender, *recipients) for _, address in people(field)
        ):
            counts.of_others += 1
        elif filters.max_body_characters is not None and len(mail.body) > filters.max_body_characters:
            counts.too_long += 1
        elif filters.max_recipients is not None and len(recipients) > filters.max_recipients:
            counts.too_many_recipients += 1
        elif filters.drop_copies and not _is_new(mail, contents):
            counts.copies += 1
        else:
            counts.kept += 1
            yield mail
            if counts.kept == filters.max_emails:
                return


def _is_new(mail: Email, contents: set[bytes]) -> bool:
    """Whether this content has not been seen before."""
    # Digests keep the contents of a million mails within some 100 MB.
    content = "\0".join((mail.sender, mail.subject, mail.body)).encode()
    digest = blake2b(content, digest_size=16).digest()
    if digest in contents:
        return False
    contents.add(digest)
    return True
