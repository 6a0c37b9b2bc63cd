"""The parts of a mail, found in time and memory that are bounded by its size, even for hostile mail.

It uses `email.parser` only for the header fields, because that creates an object for every line, checks each line once
for every enclosing part, and compiles a boundary of any length. Here a part is a range of the mail's bytes, and each
level is searched once. Parts are found where `email.parser` finds them, even in broken mails.
"""

import io
import re
from base64 import b64decode
from binascii import Error as UudecodeError
from binascii import a2b_qp, a2b_uu
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from email.policy import compat32
from time import thread_time

MAX_TEXT_BYTES = 4_000_000
"""Most bytes of all text of a mail before decoding, which makes it shorter: twenty times what an inbox stores of a
mail."""
MAX_PARTS = 10_000
MAX_DEPTH = 50
MAX_HEADER_BYTES = 1_000_000
"""Most bytes of one part's header: some thousands of recipients."""
MAX_SECONDS = 5.0
"""Most seconds of processor time; an ordinary mail takes a millisecond."""

_MAX_PARAMETERS = 8_000
"""Most bytes of a Content-Type field: parsing its parameters takes quadratic time."""
_MAX_BOUNDARY = 200
"""Most bytes of a boundary; RFC 2046 allows 70."""

_HEADER = re.compile(rb"(?:(?:From |[!-9;-~]*+:|[\t ])[^\r\n]*+(?:\r\n?+|\n|\Z))*+")
_BLANK_LINE = re.compile(rb"\r\n?+|\n|")
_LAST_LINE_END = re.compile(rb"(?:\r\n|\r|\n)\Z")
_UU = {"x-uuencode", "uuencode", "uue", "x-uue"}

_header_parser = BytesHeaderParser(policy=compat32)


class MailRefused(Exception):
    """The mail exceeds a limit that no ordinary mail reaches; the message says which."""


@dataclass(frozen=True, slots=True)
class Part:
    """Header fields, and the byte range of the content after them."""

    header: Message
    start: int
    end: int
    depth: int


class MailParts:
    """The parts of one mail. Every method raises MailRefused if the mail exceeds a limit."""

    def __init__(self, mail: bytes) -> None:
        self._mail = mail
        self._began = thread_time()
        self._count = 0
        self._text_bytes = 0

    def top(self) -> Part:
        """Return the mail itself as a part."""
        return self._part(0, len(self._mail), depth=0)

    def inside(self, part: Part) -> list[Part]:
        """Return the parts of a `multipart`, or the mail in a `message`; empty for other types."""
        if part.header.get_content_maintype() == "message":
            return [self._part(part.start, part.end, part.depth + 1)]
        if part.header.get_content_maintype() != "multipart":
            return []
        default = "message/rfc822" if part.header.get_content_type() == "multipart/digest" else "text/plain"
        return [self._part(start, end, part.depth + 1, default) for start, end in self._ranges(part)]

    def decoded(self, part: Part) -> bytes:
        """Return the bytes of a text without their transfer encoding; unchanged if they do not follow it."""
        size = part.end - part.start
        self._text_bytes += size
        if self._text_bytes > MAX_TEXT_BYTES:
            raise MailRefused(f"more than {MAX_TEXT_BYTES:,} bytes of text")
        self._check_time()
        return _decoded(self._mail[part.start : part.end], str(part.header.get("content-transfer-encoding", "")))

    def _part(self, start: int, end: int, depth: int, default_type: str = "text/plain") -> Part:
        self._count += 1
        if self._count > MAX_PARTS:
            raise MailRefused(f"more than {MAX_PARTS:,} parts")
        if depth > MAX_DEPTH:
            raise MailRefused(f"parts nested more than {MAX_DEPTH} deep")
        self._check_time()
        found = _HEADER.match(self._mail, start, end)
        header_end = found.end() if found else start
        if header_end - start > MAX_HEADER_BYTES:
            raise MailRefused(f"a header of more than {MAX_HEADER_BYTES:,} bytes")
        header = _header_parser.parsebytes(self._mail[start:header_end])
        header.set_default_type(default_type)
        if sum(len(value) for name, value in header.raw_items() if name.lower() == "content-type") > _MAX_PARAMETERS:
            raise MailRefused(f"a Content-Type of more than {_MAX_PARAMETERS:,} bytes")
        blank = _BLANK_LINE.match(self._mail, header_end, end)
        return Part(header, blank.end() if blank else header_end, end, depth)

    def _ranges(self, part: Part) -> Iterator[tuple[int, int]]:
        """Yield the ranges between the boundary lines of a multipart; none if there is no such line."""
        if (boundary := _boundary(part)) is None:
            return
        line = re.compile(rb"--" + re.escape(boundary) + rb"(--)?+[ \t]*+(?:\r\n?+|\n|\Z)")
        begun: int | None = None
        for found in line.finditer(self._mail, part.start, part.end):
            self._check_time()
            if found.start() > part.start and self._mail[found.start() - 1] not in b"\r\n":
                continue
            if begun == found.start():  # Consecutive boundary lines count as one.
                begun = found.end()
                continue
            if begun is not None:
                yield begun, self._without_line_end(begun, found.start())
            if found[1]:
                return
            begun = found.end()
        if begun is not None:
            yield begun, part.end

    def _without_line_end(self, start: int, end: int) -> int:
        """Return the end of the content: the line end before a boundary belongs to the boundary."""
        found = _LAST_LINE_END.search(self._mail, max(start, end - 2), end)
        return found.start() if found else end

    def _check_time(self) -> None:
        if thread_time() - self._began > MAX_SECONDS:
            raise MailRefused(f"more than {MAX_SECONDS:g} s to read")


def _boundary(part: Part) -> bytes | None:
    boundary = part.header.get_boundary()
    if boundary is None:
        return None
    if len(boundary) > _MAX_BOUNDARY:
        raise MailRefused(f"a boundary of more than {_MAX_BOUNDARY} characters")
    try:
        return boundary.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # A lone surrogate, which cannot occur in a line of a mail.
        return None


def _decoded(data: bytes, encoding: str) -> bytes:
    match encoding.strip().lower():
        case "quoted-printable":
            return a2b_qp(data)
        case "base64":
            try:
                return b64decode(data + b"===")
            except ValueError:
                return data
        case name if name in _UU:
            return _uudecoded(data)
    return data


def _uudecoded(data: bytes) -> bytes:
    lines = io.BytesIO(data)
    if not any(line.startswith(b"begin ") for line in lines):
        return data
    found = bytearray()
    for line in lines:
        if line.strip() == b"end":
            break
        if line.isspace():
            continue
        try:
            found += a2b_uu(line)
        except UudecodeError:
            try:  # Some encoders write more bytes than the line declares.
                found += a2b_uu(line[: (((line[0] - 32) & 63) * 4 + 5) // 3])
            except UudecodeError:
                return data
    return bytes(found)
