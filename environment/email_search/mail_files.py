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

MAX_MAIL_BYTES = 32_000_000
"""Most bytes to read of a mail; the rest (usually attachments) is left out."""

_CHUNK = 65_536
_BLOCK = 1_000_000
_FIRST_SEPARATOR = re.compile(rb"(?<=\n)(From [^\n]*+)")
_SEPARATOR = re.compile(rb"\n[ \t\r\f\v]*+\n(From (?=[^\n]*\d:\d\d)(?=[^\n]*\b\d{4}\b)[^\n]{0,394}+)(?=\n|\Z)")
_GIT_PATCH = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001")
_MAX_ENVELOPE = 400
_ESCAPE = re.compile(rb"(?<=\n)>(?=>*+From )")


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
            if not head:
                yield BrokenMail(_printable(path), "empty file")
            elif head.lstrip().startswith(b"From ") and not one_mail:
                yield from _mails_of_mbox(path, stream)
            else:
                yield _single_mail(path, stream)
        except (EOFError, zlib.error) as error:  # Other gzip errors are OSErrors.
            yield BrokenMail(_printable(path), f"damaged gzip file: {error}")


def _single_mail(path: Path, stream: io.BufferedReader) -> RawMail:
    data = stream.read(MAX_MAIL_BYTES + 1)
    envelope = ""
    if data.startswith(b"From "):
        first, _, data = data.partition(b"\n")
        envelope = _envelope(first)
    return RawMail(_printable(path), 1, 0, data[:MAX_MAIL_BYTES], envelope, cut=len(data) > MAX_MAIL_BYTES)


def _mails_of_mbox(path: Path, stream: io.BufferedReader) -> Iterator[RawMail]:
    """Split at `From ` lines that have a time and a year and follow a blank line, because mail text can contain the
    word.

    The first line of a `git format-patch` file also looks like one. It splits a file that begins with it; elsewhere it
    is a patch within a mail.
    """
    mail: _OpenMail | None = None
    offset, before, patches = 0, b"\n\n", False
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
    """Yield blocks of whole lines, unless a line is very long: it can be as long as the file."""
    while block := stream.read1(_BLOCK):
        try:
            rest = b"" if block.endswith(b"\n") else stream.readline(_CHUNK)
        except (EOFError, zlib.error, OSError):  # What was read before the damage is valid.
            yield block
            raise
        yield block + rest


def _separators(text: bytes, *, first: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yield the separator lines of a block, each with its start and the start of the next line."""
    position = 0
    if first:  # The first line is a separator whatever it looks like.
        found = _FIRST_SEPARATOR.search(text)
        if found is None:
            return
        yield found[1], found.start(1), found.end() + 1
        position = found.end()
    for found in _SEPARATOR.finditer(text, position):
        yield found[1], found.start(1), found.end() + 1


def _ending(text: bytes) -> bytes:
    """Return the end of a block that is needed to read the next one: it shows whether the block ends with a line, and
    with a blank one."""
    if not text.endswith(b"\n"):
        return b"x"
    blank = not text[text.rfind(b"\n", 0, len(text) - 1) + 1 :].strip()
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
