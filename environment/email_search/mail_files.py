"""Which mails lie in a file or folder: mbox (also gzipped), Maildir, single mails, and folders of all these.

Mails come one by one, so that a mailbox of any size needs the memory of one mail. What cannot be read is
reported in its place and never ends the walk.
"""

import io
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
_MAX_FROM_LINE = 400
_ESCAPED_FROM = re.compile(rb">+From ")


@dataclass(frozen=True, slots=True)
class RawMail:
    """The bytes of one mail. `number` (from 1) and `offset` (bytes, after unpacking) are its place in the file."""

    file: Path
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

    file: Path
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
                    yield BrokenMail(path, "folder already read: a symbolic link leads back to it")
                    continue
                visited.add(folder)
                waiting += reversed(_entries(path))
            elif stat.S_ISREG(status.st_mode):
                yield from _mails_of_file(path, one_mail)
            else:  # opening a pipe would wait for ever
                yield BrokenMail(path, "neither a file nor a folder")
        except OSError as error:
            yield BrokenMail(path, error.strerror or str(error))


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    """What to read in a folder, and whether each file there is one mail, as in a Maildir."""
    paths = sorted(folder.iterdir())
    if not {"cur", "new"} <= {path.name for path in paths}:
        one_mail = folder.name in ("cur", "new")
        return [(path, one_mail) for path in paths]
    # A Maildir: `tmp` holds unfinished deliveries, files beside it are its server's indexes.
    return [(path, False) for path in paths if path.name != "tmp" and path.is_dir()]


def _mails_of_file(path: Path, one_mail: bool) -> Iterator[RawMail | BrokenMail]:
    with path.open("rb") as packed:
        try:
            stream = packed
            if packed.peek(2)[:2] == b"\x1f\x8b":
                stream = io.BufferedReader(GzipFile(fileobj=packed))
            head = stream.peek(_CHUNK)
            if not head:
                yield BrokenMail(path, "empty file")
            elif head.lstrip().startswith(b"From ") and not one_mail:
                yield from _mails_of_mbox(path, stream)
            else:
                yield _single_mail(path, stream)
        except (EOFError, zlib.error) as error:  # other faults of gzip are OSErrors
            yield BrokenMail(path, f"damaged gzip file: {error}")


def _single_mail(path: Path, stream: io.BufferedReader) -> RawMail:
    data = stream.read(MAX_MAIL_BYTES + 1)
    envelope = ""
    if data.startswith(b"From "):
        first, _, data = data.partition(b"\n")
        envelope = _envelope(first)
    return RawMail(path, 1, 0, data[:MAX_MAIL_BYTES], envelope, cut=len(data) > MAX_MAIL_BYTES)


def _mails_of_mbox(path: Path, stream: io.BufferedReader) -> Iterator[RawMail]:
    """Split at `From ` lines that have a time and a year and follow a blank line, as mail text may have the word."""
    number, start, envelope = 0, 0, ""
    lines: list[bytes] = []
    size, offset, cut = 0, 0, False
    line_start, after_blank = True, True
    # A bounded readline: a line may be as long as the file.
    while line := stream.readline(_CHUNK):
        if line_start and after_blank and _is_from_line(line):
            if number:
                yield RawMail(path, number, start, b"".join(lines), envelope, cut)
            number, start, envelope = number + 1, offset, _envelope(line)
            lines, size, cut = [], 0, False
        elif number:
            if line_start and _ESCAPED_FROM.match(line):
                line = line[1:]
            cut = cut or size + len(line) > MAX_MAIL_BYTES
            if not cut:
                lines.append(line)
                size += len(line)
        after_blank = line_start and not line.strip()
        line_start = line.endswith(b"\n")
        offset = stream.tell()
    if number:
        yield RawMail(path, number, start, b"".join(lines), envelope, cut)


def _is_from_line(line: bytes) -> bool:
    return len(line) <= _MAX_FROM_LINE and _FROM_LINE.match(line) is not None


def _envelope(line: bytes) -> str:
    return line[:_MAX_FROM_LINE].decode("ascii", "replace").removeprefix("From ").strip()
