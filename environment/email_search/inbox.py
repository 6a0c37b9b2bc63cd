"""An inbox in SQLite with full-text search: written once (or appended to), read by many rollouts simultaneously.

Search is FTS5 with the porter stemmer, and with pairs of characters where a language has no spaces. Keywords are AND-ed
and quoted, so no input is query syntax. Readers open the file read-only with one connection per thread; an in-memory
inbox has one connection behind a lock.
"""

import fcntl
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from learnloop_service.environment.email_search.mail_addresses import people
from learnloop_service.environment.email_search.word_pairs import in_a_row, indexed, with_all

MAX_HITS = 10
MAX_RANKED = 5_000
"""Most mails to rank. Ranking takes some 20 microseconds per mail, which would be seconds for words in half a million
mails."""
_SHARED = 1
"""`user_version` of a shared inbox's file."""
_WITH_PAIRS = 0x4C4C0002
"""`application_id` of a file that is indexed as `word_pairs` describes; those of earlier releases have 0."""
_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS email (
    rowid INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    message_id TEXT NOT NULL UNIQUE,
    sender TEXT NOT NULL,
    sent_at TEXT,
    subject TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS address (
    email_rowid INTEGER NOT NULL REFERENCES email (rowid),
    role TEXT NOT NULL CHECK (role IN ('from', 'to', 'cc', 'bcc')),
    name TEXT NOT NULL,
    address TEXT NOT NULL,
    folded TEXT NOT NULL -- "name <address>" for search: SQLite's lower() knows ASCII only
);
CREATE VIRTUAL TABLE IF NOT EXISTS email_fts USING fts5 (
    subject, body, content='email', content_rowid='rowid', tokenize='porter unicode61'
);
"""
_INSERT = "INSERT INTO email_fts (rowid, subject, body) VALUES (?, ?, ?)"
_INDEXES = """
CREATE INDEX IF NOT EXISTS email_sent_at ON email (sent_at);
CREATE INDEX IF NOT EXISTS address_email ON address (email_rowid);
CREATE INDEX IF NOT EXISTS address_address ON address (address);
CREATE INDEX IF NOT EXISTS address_folded ON address (folded, role, email_rowid);
"""
_OF_PERSON = """
WITH RECURSIVE person (folded) AS ( -- each form of a name once, by a step in the index for each
    SELECT min(folded) FROM address
    UNION ALL
    SELECT (SELECT min(folded) FROM address WHERE address.folded > person.folded) FROM person
    WHERE person.folded IS NOT NULL
)
SELECT email_rowid FROM address
WHERE folded IN (SELECT folded FROM person WHERE instr(folded, ?)) AND role IN {roles}
"""
_OF_PERSON_WITHOUT_INDEX = "SELECT email_rowid FROM address WHERE instr(folded, ?) AND role IN {roles}"
"""SQL condition that a mail is from or to a person, for files written before the index of people existed."""
_IS_OF_PERSON = "EXISTS (SELECT 1 FROM address WHERE email_rowid = {number} AND role IN {roles} AND instr(folded, ?))"
"""The same for one mail."""
_FEW = 1_000
"""Most mails with the words of a search whose people are compared mail by mail. For more, all mails of a person are
found first, which takes as long as looking through all people of the inbox."""
_BULK = "PRAGMA cache_size = -65536; INSERT INTO email_fts (email_fts, rank) VALUES ('hashsize', 33554432);"
"""Memory for writing, in KiB and bytes. With less, half of the time is spent on merging small parts of the text
index."""
_PLAIN_ADDRESS = re.compile(r"(?:([\w .'-]+) <)?([\w.+-]+@[\w.-]+)(?(1)>)")
"""Matches nearly all header fields, faster than they are parsed."""


class InboxError(Exception):
    """The file is not an inbox, or cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Email:
    """One mail. `id` is short and unique within its inbox; the agent reads and cites it.

    `sender`, `to`, `cc` and `bcc` hold header forms such as `Mara Velin <mara@tolvani.example>`.
    """

    id: str
    message_id: str
    sender: str
    to: tuple[str, ...]
    sent_at: datetime | None
    subject: str
    body: str
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result; the text must be read separately."""

    id: str
    subject: str
    sender: str
    sent_at: datetime | None


@dataclass(frozen=True, slots=True)
class InboxStats:
    """Statistics of an inbox. Dates are None if no mail has one."""

    emails: int
    senders: int
    recipients: int
    first: datetime | None
    last: datetime | None


def write_inbox(path: Path, emails: Iterable[Email], *, shared: bool = False) -> int:
    """Create or extend the inbox file in one transaction; returns the number of new mails.

    A mail whose Message-ID is already there is left out. A `shared` inbox holds the mail of several people; a search in
    it finds only what was sent from or to one address. Raises InboxError; the file is then unchanged.
    """
    is_new, added = not path.exists(), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _transaction(path, _SCHEMA + _BULK) as connection:
            if shared:
                connection.execute(f"PRAGMA user_version = {_SHARED}")
            added = _insert(connection, emails)
            for statement in _INDEXES.strip().splitlines():
                connection.execute(statement)
        return added
    except (sqlite3.Error, OSError) as error:
        raise InboxError(f"cannot write inbox {path}: {error}") from error
    finally:
        if is_new and added is None and path.exists():
            path.unlink()


@contextmanager
def _transaction(path: Path, script: str = "") -> Iterator[sqlite3.Connection]:
    """Yield a connection that writes in one transaction, with the index in its present form."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Without a write-ahead log, a transaction larger than the page cache locks readers out until it ends.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(script)
        connection.execute("BEGIN IMMEDIATE")
        if _application_id(connection) != _WITH_PAIRS:
            _index_pairs(connection)
        yield connection
        connection.execute("COMMIT")
        # SQLite refuses while others read; a single file is easier to copy.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = DELETE")


def _application_id(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def _index_pairs(connection: sqlite3.Connection) -> None:
    """Index the emails anew that an earlier release indexed otherwise."""
    remove = "INSERT INTO email_fts (email_fts, rowid, subject, body) VALUES ('delete', ?, ?, ?)"
    for number, *texts in connection.execute("SELECT rowid, subject, body FROM email"):
        if (pairs := [indexed(text) for text in texts]) != texts:
            connection.execute(remove, (number, *texts))
            connection.execute(_INSERT, (number, *pairs))
    connection.execute(f"PRAGMA application_id = {_WITH_PAIRS}")


def index_anew(path: Path) -> None:
    """Index the file anew if an earlier release wrote it, which is the case once. A file that cannot be written stays,
    and is searched as before. Raises sqlite3.Error if it is not an inbox."""
    if _is_current(path):
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # Others who open the inbox wait for its new index.
        if not _is_current(path):
            _write_anew(path)
    except (sqlite3.Error, OSError) as error:
        _log.warning("%s cannot be indexed anew for languages without spaces: %s", path, error)
    finally:
        os.close(folder)


def _is_current(path: Path) -> bool:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("SELECT 1 FROM email_fts LIMIT 1")
        return _application_id(connection) == _WITH_PAIRS


def _write_anew(path: Path) -> None:
    mode, protected = path.stat().st_mode, not os.access(path, os.W_OK)
    if protected:  # Prepared inboxes are.
        path.chmod(mode | 0o200)
    try:
        with _transaction(path):
            pass
    finally:
        if protected:
            path.chmod(mode)


def _insert(connection: sqlite3.Connection, emails: Iterable[Email]) -> int:
    added = 0
    for mail in emails:
        sent_at = mail.sent_at.astimezone(UTC).isoformat() if mail.sent_at else None
        row = connection.execute(
            "INSERT INTO email (id, message_id, sender, sent_at, subject, body) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING RETURNING rowid",
            (mail.id, mail.message_id, mail.sender, sent_at, mail.subject, mail.body),
        ).fetchone()
        if row is None:
            continue
        roles = (("from", (mail.sender,)), ("to", mail.to), ("cc", mail.cc), ("bcc", mail.bcc))
        connection.executemany(
            "INSERT INTO address (email_rowid, role, name, address, folded) VALUES (?, ?, ?, ?, ?)",
            [
                (row[0], role, name, address.lower(), f"{name} <{address}>".casefold())
                for role, headers in roles
                for name, address in _people(headers)
                if name or address
            ],
        )
        connection.execute(_INSERT, (row[0], indexed(mail.subject), indexed(mail.body)))
        added += 1
    return added


def _people(headers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and address of each person."""
    for header in headers:
        if plain := _PLAIN_ADDRESS.fullmatch(header):
            yield " ".join((plain[1] or "").split()), plain[2]
        else:
            yield from people(header)


class Inbox:
    """Read access to one inbox. Can be used from many threads."""

    def __init__(self, path: Path) -> None:
        """Open the inbox file. Raises InboxError if it is not one."""
        self._uri: str | None = f"{path.resolve().as_uri()}?mode=ro"
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        try:
            index_anew(path)
            with self._connection() as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                has_index = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'address_folded'"
                self._of_person = _OF_PERSON if connection.execute(has_index).fetchone() else _OF_PERSON_WITHOUT_INDEX
        except sqlite3.Error as error:
            raise InboxError(f"cannot read inbox {path}: {error}") from error
        self.shared = bool(version == _SHARED)

    @classmethod
    def in_memory(cls, emails: Iterable[Email]) -> "Inbox":
        """Return an inbox that exists as long as the object."""
        inbox = cls.__new__(cls)
        inbox._uri = None
        inbox._of_person = _OF_PERSON
        inbox.shared = False
        inbox._lock = threading.Lock()
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        connection.executescript(_SCHEMA + _INDEXES)
        _insert(connection, emails)
        connection.execute("PRAGMA query_only = ON")
        inbox._opened = [connection]
        return inbox

    @property
    def blocking(self) -> bool:
        """Whether a query can touch the disk, so that an event loop should run it in a thread."""
        return self._uri is not None

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._uri is None:
            with self._lock:
                yield self._opened[0]
            return
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
            with self._lock:
                self._opened.append(connection)
        yield connection

    def search(
        self,
        keywords: Sequence[str],
        *,
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: date | None = None,
        sent_before: date | None = None,
        mailbox: str | None = None,
        limit: int = MAX_HITS,
    ) -> list[Hit]:
        """Return mails that contain every keyword (stemmed), best match first; with `mailbox`, only mails from or to
        that address.

        `sender` and `recipient` match a part of a name or address. `sent_after` is inclusive, `sent_before` exclusive;
        an undated mail matches neither. Without keywords the newest mails are first; keywords without a letter or digit
        find nothing. Among more than MAX_RANKED mails only the last written are ranked.
        """
        words = with_all(keywords)
        if keywords and not words:
            return []
        selection, values = self._selection(words, sender, recipient, sent_after, sent_before, mailbox)
        fields = "email.id, email.subject, email.sender, email.sent_at"
        query = f"SELECT {fields} FROM {selection} ORDER BY email.sent_at DESC LIMIT ?"
        if words:
            query = (
                "WITH ranked AS MATERIALIZED ("
                f"SELECT email_fts.rowid AS number, email_fts.rank AS rank FROM {selection}"
                f" ORDER BY email_fts.rowid DESC LIMIT {MAX_RANKED}) "
                f"SELECT {fields} FROM ranked JOIN email ON email.rowid = ranked.number ORDER BY rank, number LIMIT ?"
            )
        with self._connection() as connection:
            rows = connection.execute(query, (*values, max(0, min(limit, MAX_HITS)))).fetchall()
        return [Hit(id, subject, sender, _moment(sent_at)) for id, subject, sender, sent_at in rows]

    def _selection(
        self,
        words: str,
        sender: str | None,
        recipient: str | None,
        sent_after: date | None,
        sent_before: date | None,
        mailbox: str | None,
    ) -> tuple[str, list[object]]:
        """A table and the conditions on it, as in SQL after FROM, with the values of its parameters."""
        where, values = ["1"], list[object]()
        # A condition with a plus is evaluated once instead of for each mail that has the words.
        of_person = f"+{{number}} IN ({self._of_person})"
        source, number = "email", "email.rowid"
        if words:
            source, number = "email_fts", "email_fts.rowid"
            where.append("email_fts MATCH ?")
            values.append(words)
            if (sender or recipient) and self._are_few(words):
                of_person = _IS_OF_PERSON
        for text, roles in ((sender, "('from')"), (recipient, "('to', 'cc', 'bcc')")):
            if text:
                where.append(of_person.format(number=number, roles=roles))
                values.append(_encodable(text).casefold())
        if mailbox is not None:
            where.append(f"+{number} IN (SELECT email_rowid FROM address WHERE address.address = ?)")
            values.append(_encodable(mailbox).lower())
        days = [(day, sign) for day, sign in ((sent_after, ">="), (sent_before, "<")) if day]
        if days:
            between = " AND ".join(f"sent_at {sign} ?" for _, sign in days)
            where.append(f"+{number} IN (SELECT rowid FROM email WHERE {between})" if words else between)
            values += [day.isoformat() for day, _ in days]
        return f"{source} WHERE {' AND '.join(where)}", values

    def _are_few(self, words: str) -> bool:
        """Whether at most _FEW mails have the words."""
        query = "SELECT count(*) FROM (SELECT 1 FROM email_fts WHERE email_fts MATCH ? LIMIT ?)"
        with self._connection() as connection:
            return int(connection.execute(query, (words, _FEW + 1)).fetchone()[0]) <= _FEW

    def read(self, email_id: str) -> Email | None:
        """Return the whole mail, or None if no mail has that id."""
        with self._connection() as connection:
            row = connection.execute(
                "SELECT rowid, id, message_id, sender, sent_at, subject, body FROM email WHERE id = ?",
                (_encodable(email_id),),
            ).fetchone()
            if row is None:
                return None
            named: dict[str, list[str]] = {"to": [], "cc": [], "bcc": []}
            for role, name, address in connection.execute(
                "SELECT role, name, address FROM address WHERE email_rowid = ? AND role <> 'from' ORDER BY rowid",
                (row[0],),
            ):
                named[role].append(f"{name} <{address}>" if name and address else name or address)
        _, id, message_id, sender, sent_at, subject, body = row
        to, cc, bcc = (tuple(named[role]) for role in ("to", "cc", "bcc"))
        return Email(id, message_id, sender, to, _moment(sent_at), subject, body, cc, bcc)

    def numbers(self) -> list[int]:
        """Return the numbers that `at` accepts: one per email, in the order of writing."""
        with self._connection() as connection:
            return [number for (number,) in connection.execute("SELECT rowid FROM email ORDER BY rowid")]

    def at(self, number: int) -> Email:
        """Return the email with that number, which must be one of `numbers`."""
        with self._connection() as connection:
            (id,) = connection.execute("SELECT id FROM email WHERE rowid = ?", (number,)).fetchone()
        email = self.read(id)
        assert email is not None
        return email

    def is_only_one(self, subject: str, *, sender: str | None = None, day: date | None = None) -> bool:
        """Whether exactly one email has that subject's words in its own, in a row, and that sender or day."""
        words = in_a_row(subject)
        if not words:
            return False
        where, values = "email_fts MATCH ?", [f"subject : {words}"]
        if sender is not None:
            where, values = f"{where} AND email.sender = ?", [*values, sender]
        if day is not None:
            where, values = f"{where} AND substr(email.sent_at, 1, 10) = ?", [*values, day.isoformat()]
        query = f"SELECT 1 FROM email_fts JOIN email ON email.rowid = email_fts.rowid WHERE {where} LIMIT 2"
        with self._connection() as connection:
            return len(connection.execute(query, values).fetchall()) == 1

    def id_of(self, source: str) -> str | None:
        """Return the id of the email with this id or Message-ID; None if there is none."""
        with self._connection() as connection:
            row = connection.execute(
                "SELECT id FROM email WHERE id = ?1 OR message_id = ?1 ORDER BY id = ?1 DESC", (_encodable(source),)
            ).fetchone()
        return None if row is None else str(row[0])

    def knows(self, address: str) -> bool:
        """Whether an email is from or to this address."""
        with self._connection() as connection:
            query = "SELECT 1 FROM address WHERE address = ? LIMIT 1"
            return connection.execute(query, (_encodable(address).lower(),)).fetchone() is not None

    def stats(self) -> InboxStats:
        """Return counts and the range of dates."""
        with self._connection() as connection:
            emails, first, last = connection.execute(
                "SELECT count(*), min(sent_at), max(sent_at) FROM email"
            ).fetchone()
            (senders,) = connection.execute(
                "SELECT count(DISTINCT address) FROM address WHERE role = 'from'"
            ).fetchone()
            (recipients,) = connection.execute(
                "SELECT count(DISTINCT address) FROM address WHERE role <> 'from'"
            ).fetchone()
        return InboxStats(emails, senders, recipients, _moment(first), _moment(last))

    def mails_by_day(self) -> dict[date, int]:
        """Return how many mails were sent on each day (UTC), without undated ones."""
        query = "SELECT substr(sent_at, 1, 10), count(*) FROM email WHERE sent_at IS NOT NULL GROUP BY 1"
        with self._connection() as connection:
            return {date.fromisoformat(day): mails for day, mails in connection.execute(query)}

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for connection in self._opened:
                connection.close()
            self._opened.clear()


def _encodable(text: str) -> str:
    """Replace lone surrogates, which a policy can write in JSON and SQLite does not accept."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
