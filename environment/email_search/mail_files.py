"""Which mails lie in a file or folder: mbox (also gzipped), Maildir, single mails, and folders of all these.

Mails come one by one, so that a mailbox of any size needs the memory of one mail. What cannot be read is
reported in its place and never ends the walk.
"""

import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path

MAX_MAIL_BYTES = 32_000_000
"""Of a longer mail the rest (attachments, as a rule) is left out."""

_CHUNK = 65_536
_FROM_LINE = re.compile(rb"From (?=.*\d:\d\d)(?=.*\b\d{4}\b)")
_GIT_PATCH = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001")
_MAX_FROM_LINE = 400
_ESCAPED_FROM = re.compile(rb">+From ")


@dataclass(frozen=True, slots=True)
class RawMail:
    """The bytes of one mail. `number` (from 1) and `offset` (bytes, after unpacking) are its place in the file."""

    file: str
    number: int
    offset: int
    data: bytes
    envelope: str = ""
    """What follows `From ` in an mbox: sender and time of delivery."""
    cut: bool = False
    """Whether it was longer than MAX_MAIL_BYTES."""


@dataclass(frozen=True, slots=True)
class BrokenMail:
    """What could not be read, and why. Without a number it is the whole file or folder."""

    file: str
    reason: str
    number: int | None = None
    offset: int | None = None


def raw_mails(source: Path) -> Iterator[RawMail | BrokenMail]:
    """All mails under a file or folder, folders in order of their names."""
    visited: set[tuple[int, int]] = set()
    waiting = [(source, False)]
    while waiting:
        path, one_mail = waiting.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                folder = (status.st_dev, status.st_ino)
                if folder in visited:
                    yield BrokenMail(_shown(path), "folder already read: a symbolic link leads back to it")
                    continue
                visited.add(folder)
                waiting += reversed(_entries(path))
            elif stat.S_ISREG(status.st_mode):
                yield from _mails_of_file(path, one_mail)
            else:  # opening a pipe would wait for ever
                yield BrokenMail(_shown(path), "neither a file nor a folder")
        except OSError as error:
            yield BrokenMail(_shown(path), error.strerror or str(error))


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    """What to read in a folder, and whether each file there is one mail, as in a Maildir."""
    paths = sorted(folder.iterdir())
    if {"cur", "new"} <= {path.name for path in paths}:  # a Maildir: `tmp` holds unfinished deliveries
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
                yield BrokenMail(_shown(path), "empty file")
            elif head.lstrip().startswith(b"From ") and not one_mail:
                yield from _mails_of_mbox(path, stream)
            else:
                yield _single_mail(path, stream)
        except (EOFError, zlib.error) as error:  # other faults of gzip are OSErrors
            yield BrokenMail(_shown(path), f"damaged gzip file: {error}")


def _single_mail(path: Path, stream: io.BufferedReader) -> RawMail:
    data = stream.read(MAX_MAIL_BYTES + 1)
    envelope = ""
    if data.startswith(b"From "):
        first, _, data = data.partition(b"\n")
        envelope = _envelope(first)
    return RawMail(_shown(path), 1, 0, data[:MAX_MAIL_BYTES], envelope, cut=len(data) > MAX_MAIL_BYTES)


def _mails_of_mbox(path: Path, stream: io.BufferedReader) -> Iterator[RawMail]:
    """Split at `From ` lines that have a time and a year and follow a blank line, as mail text may have the word.

    The first line of a `git format-patch` file looks like one too. It splits a file that begins with it;
    elsewhere it is a patch in a mail.
    """
    number, start, envelope = 0, 0, ""
    lines: list[bytes] = []
    size, offset, cut = 0, 0, False
    line_start, after_blank, patches = True, True, False
    # A bounded readline: a line may be as long as the file.
    while line := stream.readline(_CHUNK):
        length = len(line)
        if not number:
            patches = _GIT_PATCH.match(line) is not None
        if line_start and after_blank and _is_from_line(line, first=not number, patches=patches):
            if number:
                yield RawMail(_shown(path), number, start, b"".join(lines), envelope, cut)
            number, start, envelope = number + 1, offset, _envelope(line)
            lines, size, cut = [], 0, False
        elif number:
            if line_start and _ESCAPED_FROM.match(line):
                line = line[1:]
            cut = cut or size + length > MAX_MAIL_BYTES
            if not cut:
                lines.append(line)
                size += length
        after_blank = line_start and not line.strip()
        line_start = line.endswith(b"\n")
        offset += length
    if number:
        yield RawMail(_shown(path), number, start, b"".join(lines), envelope, cut)


def _is_from_line(line: bytes, first: bool, patches: bool) -> bool:
    if first:  # what else could it be
        return line.startswith(b"From ")
    if len(line) > _MAX_FROM_LINE or not _FROM_LINE.match(line):
        return False
    return patches or not _GIT_PATCH.match(line)


def _envelope(line: bytes) -> str:
    return line[:_MAX_FROM_LINE].decode("ascii", "surrogateescape").removeprefix("From ").strip()


def _shown(path: Path) -> str:
    """The path as text that can be printed and encoded; file names may be any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")
