"""Finds the mails in a file or folder: mbox (also gzipped), Maildir, single mails, and folders of all these.

Mails are yielded one by one, so a mailbox of any size needs the memory of one mail. Unreadable ones are reported in
their place and never end the iteration.
"""

import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from gzip import GzipFile
from pathlib import Path

from learnloop_mail.reading.mime_parts import MAIL_FIELD

MAX_MAIL_BYTES = 32_000_000
"""Most bytes to read of a mail; the rest (usually attachments) is left out."""

_CHUNK = 65_536
_BLOCK = 1_000_000
_FIRST_SEPARATOR = re.compile(rb"(?<=\n)(From [^\n]*+)")
_FROM_LINE = re.compile(
    rb"(?<=\n)(From (?:(?=[^\n]*\d:\d\d)[^\n]{0,394}+(?=\n|\Z)|\S{1,320}+[ \t]*+\r?(?=\n[A-Za-z][\w-]*+[ \t]*+:)))"
)
_DAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_ZONE = rb"(?:[+-]\d{4}|[A-Z]{1,5})"
_STAMP = re.compile(
    rb"\b%(d)s,? +(?:%(m)s +\d\d?,? +\d\d?:\d\d(?::\d\d)?(?: +%(z)s)? +\d{4}|\d\d? +%(m)s +\d{4} +\d\d:\d\d:\d\d)"
    rb"(?: +\(?%(z)s\)?)*(?: +remote from \S+)?\s*\Z" % {b"d": _DAY, b"m": _MONTH, b"z": _ZONE}
)
"""Matches a line that ends with day, date, time and year, as mail programs write it."""
_UNSTAMPED = re.compile(
    rb"From (?:(?:\S*@\S*|-)(?:\s*\Z|\s+(?=.*\d:\d\d).*\b\d{4}\b)|\S+ .*\d\d:\d\d:\d\d(?: \S{1,6})? \d{4}\s*\Z)"
)
"""Matches other lines of mail programs: without a date, in other forms, with days and months of other languages."""
_FIELD = re.compile(rb"[A-Za-z][\w-]*+[ \t]*+:")
_GIT_PATCH = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001")
_MAX_ENVELOPE = 400
_ESCAPE = re.compile(rb"(?<=\n)>(?=>*+From )")

_EXPORT = "export the mail as mbox or .eml files"
_TABLE = "a table or JSON: learnloop data prepare reads data sets (Parquet, Arrow, JSON Lines) with ART-E's columns"
_OTHER_FORMATS = {
    rb"PK\x03\x04|PK\x05\x06": "a ZIP archive: unpack it, and import the mail in it",
    rb"7z\xbc\xaf|Rar!|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd|[\s\S]{257}ustar": "an archive: unpack it, import the mail",
    rb"!BDN": f"an Outlook data file (.pst): {_EXPORT}",
    rb"\xd0\xcf\x11\xe0": "an Outlook message (.msg): save it as .eml",
    rb"\d{1,10}[ \t]*\r?\n[A-Za-z-]+[ \t]*:": "an Apple Mail message (.emlx): export the mailbox as mbox",
    rb"""PAR1|ARROW1|\s*(?:\{\s*["}]|\[\s*["\[{])|(?:[\w"'. -]*+(?:[,;](?! )|\t)){2,}+[\w"'. -]*+\r?\n""": _TABLE,
    rb"SQLite format 3\0": f"an SQLite database: {_EXPORT}",
    rb"%PDF-": f"a PDF document: {_EXPORT}",
}
"""What the first bytes of files begin with that hold no mail or are not read here, and what helps."""
_TABLE_SUFFIXES = {".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".arrow", ".json", ".jsonl", ".ndjson"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RawMail:
    """The bytes of one mail. `number` (from 1) and `offset` (bytes, after unpacking) locate it in the file."""

    file: str
    number: int
    offset: int
    data: bytes
    envelope: str = ""
    """Text after `From ` in an mbox: sender and time of delivery."""
    cut: bool = False
    """Whether the mail was longer than MAX_MAIL_BYTES."""


@dataclass(frozen=True, slots=True)
class BrokenMail:
    """A mail that could not be read, and why. Without a number, the whole file or folder."""

    file: str
    reason: str
    number: int | None = None
    offset: int | None = None


def raw_mails(source: Path) -> Iterator[RawMail | BrokenMail]:
    """Yield all mails under a file or folder; folders in order of their names."""
    visited: set[tuple[int, int]] = set()
    waiting = [(source, False)]
    while waiting:
        path, one_mail = waiting.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                folder = (status.st_dev, status.st_ino)
                if folder in visited:
                    yield BrokenMail(_printable(path), "folder already read: a symbolic link leads back to it")
                    continue
                visited.add(folder)
                waiting += reversed(_entries(path))
            elif stat.S_ISREG(status.st_mode):
                yield from _mails_of_file(path, one_mail)
            else:  # Opening a pipe would block.
                yield BrokenMail(_printable(path), "neither a file nor a folder")
        except OSError as error:
            yield BrokenMail(_printable(path), error.strerror or str(error))


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    """Return the paths to read in a folder, each with whether it holds a single mail, as in a Maildir."""
    paths = sorted(folder.iterdir())
    if {"cur", "new"} <= {path.name for path in paths}:  # This is a Maildir; its `tmp` holds unfinished deliveries.
        paths = [path for path in paths if path.name != "tmp"]
    return [(path, folder.name in ("cur", "new")) for path in paths]


def _mails_of_file(path: Path, one_mail: bool) -> Iterator[RawMail | BrokenMail]:
    with path.open("rb") as packed:
        try:
            stream = packed
            if packed.peek(2)[:2] == b"\x1f\x8b":
                stream = io.BufferedReader(GzipFile(fileobj=packed))
            head = stream.peek(_CHUNK)
            mark = len(stream.read(len(_UTF8_MARK))) if head.startswith(_UTF8_MARK) else 0
            head = head[mark:]
            if not head:
                yield BrokenMail(_printable(path), "empty file")
            elif other := _other_format(path, head):
                yield BrokenMail(_printable(path), other)
            elif head.lstrip().startswith(b"From ") and not one_mail:
                yield from _mails_of_mbox(path, stream, mark)
            else:
                yield _single_mail(path, stream)
        except (EOFError, zlib.error) as error:  # Other gzip errors are OSErrors.
            yield BrokenMail(_printable(path), f"damaged gzip file: {error}")


def _other_format(path: Path, head: bytes) -> str | None:
    if path.suffix.lower() in _TABLE_SUFFIXES:
        return _TABLE
    return next((description for begins, description in _OTHER_FORMATS.items() if re.match(begins, head)), None)


def _single_mail(path: Path, stream: io.BufferedReader) -> RawMail:
    data = stream.read(MAX_MAIL_BYTES + 1)
    if data.startswith(_UTF16):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    envelope = ""
    if data.startswith(b"From "):
        first, _, data = data.partition(b"\n")
        envelope = _envelope(first)
    return RawMail(_printable(path), 1, 0, data[:MAX_MAIL_BYTES], envelope, cut=len(data) > MAX_MAIL_BYTES)


def _mails_of_mbox(path: Path, stream: io.BufferedReader, offset: int) -> Iterator[RawMail]:
    """Split at `From ` lines that the lines around them show to be separators, because mail text can begin with the
    word. `offset` is where the stream begins in the file.

    The first line of a `git format-patch` file also looks like one. It splits a file that begins with it; elsewhere it
    is a patch within a mail.
    """
    mail: _OpenMail | None = None
    before, patches = b"\n\n", False
    for block in _blocks(stream):
        text = before + block
        position = len(before)
        for line, start, end in _separators(text, first=mail is None):
            if mail is None:
                patches = _GIT_PATCH.match(line) is not None
            elif patches or not _GIT_PATCH.match(line):
                mail.add(text, position, start)
                yield mail.whole(path)
            else:
                continue
            number = 1 if mail is None else mail.number + 1
            mail, position = _OpenMail(number, offset + start - len(before), _envelope(line)), end
        if mail is not None:
            mail.add(text, position, len(text))
        offset += len(block)
        before = _ending(text)
    if mail is not None:
        yield mail.whole(path)


def _blocks(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield blocks of whole lines, unless a line is very long: it can be as long as the file. A line after a
    `From ` line is in the same block, because it shows what that one is."""
    while block := stream.read1(_BLOCK):
        try:
            if not block.endswith(b"\n"):
                block += stream.readline(_CHUNK)
            if block.endswith(b"\n") and _last_line(block).startswith(b"From "):
                block += stream.readline(_CHUNK)
        except (EOFError, zlib.error, OSError):  # What was read before the damage is valid.
            yield block
            raise
        yield block


def _last_line(text: bytes) -> bytes:
    return text[text.rfind(b"\n", 0, len(text) - 1) + 1 :]


def _separators(text: bytes, *, first: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yield the separator lines of a block, each with its start and the start of the next line."""
    position = 0
    if first:  # The first line is a separator whatever it looks like.
        match = _FIRST_SEPARATOR.search(text)
        if match is None:
            return
        yield match[1], match.start(1), match.end() + 1
        position = match.end()
    for match in _FROM_LINE.finditer(text, position):
        if _separates(text, match[1], match.start(), match.end() + 1):
            yield match[1], match.start(), match.end() + 1


def _separates(text: bytes, line: bytes, start: int, end: int) -> bool:
    """Whether a `From ` line separates mails: with a stamp, it follows a blank line or precedes a header; without one,
    both. Some programs write no blank line, and some no stamp."""
    after_blank = not _last_line(text[max(0, start - _MAX_ENVELOPE) : start]).strip()
    if _STAMP.search(line):
        return after_blank or _FIELD.match(text, end) is not None
    return after_blank and _UNSTAMPED.match(line) is not None and MAIL_FIELD.match(text, end) is not None


def _ending(text: bytes) -> bytes:
    """Return the end of a block that is needed to read the next one: it shows whether the block ends with a line, and
    with a blank one."""
    if not text.endswith(b"\n"):
        return b"x"
    blank = not _last_line(text).strip()
    return b"\n\n" if blank else b"x\n"


@dataclass(slots=True)
class _OpenMail:
    """A mail of an mbox whose end has not been reached."""

    number: int
    offset: int
    envelope: str
    data: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def add(self, text: bytes, start: int, end: int) -> None:
        """Add a piece of the mail; `text` has at least one byte before `start`, which shows whether a line begins
        there."""
        if self.cut or start >= end:
            return
        self.data += _ESCAPE.sub(b"", text[start - 1 : end])[1:]
        self.cut = len(self.data) > MAX_MAIL_BYTES
        del self.data[MAX_MAIL_BYTES:]

    def whole(self, path: Path) -> RawMail:
        return RawMail(_printable(path), self.number, self.offset, bytes(self.data), self.envelope, self.cut)


def _envelope(line: bytes) -> str:
    return line[:_MAX_ENVELOPE].decode("ascii", "surrogateescape").removeprefix("From ").strip()


def _printable(path: Path) -> str:
    """Return the path as text that can be printed and encoded; file names can be any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")
