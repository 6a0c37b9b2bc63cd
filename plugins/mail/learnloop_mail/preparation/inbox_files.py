"""Immutable inbox files, identified by the hash of their emails."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from learnloop_service.environment.email_search.inbox import Email, Inbox, write_inbox


@dataclass(frozen=True, slots=True)
class InboxFile:
    """Contents of an inbox file. Days are ISO dates; None if no email has a date."""

    sha256: str
    emails: int
    first: str | None
    last: str | None


def write_inbox_file(path: Path, emails: Iterable[Email], *, shared: bool = False) -> InboxFile:
    """Write a new file. Raises InboxError and what `emails` raises, and then leaves no file."""
    content = _Content(shared)
    try:
        write_inbox(path, content.of(emails), shared=shared)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    with closing(Inbox(path)) as inbox:
        stats = inbox.stats()
    first, last = (f"{day:%Y-%m-%d}" if day else None for day in (stats.first, stats.last))
    return InboxFile(content.hash, stats.emails, first, last)


class _Content:
    """Hash of emails, updated while they are written."""

    def __init__(self, shared: bool) -> None:
        self._hash = sha256(b"shared" if shared else b"")

    def of(self, emails: Iterable[Email]) -> Iterator[Email]:
        """Yield the emails unchanged and update the hash."""
        for email in emails:
            self._hash.update(repr(email).encode())
            yield email

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()
