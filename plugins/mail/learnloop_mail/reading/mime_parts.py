"""The parts of a mail, found in time and memory that are bounded by its size, even for hostile mail.

It uses `email.parser` only for the header fields, because that creates an object for every line, checks each line once
for every enclosing part, and compiles a boundary of any length. Here a part is a range of the mail's bytes, and each
level is searched once. Parts are found where `email.parser` finds them, even in broken mails.
"""

import io
import re
from binascii import Error as UudecodeError
from binascii import a2b_qp, a2b_uu
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesHeaderParser
from email.policy import compat32
from time import thread_time

from learnloop_mail.reading.mail_text import decode_base64

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

_HEADER = re.compile(rb"(?:(?:From (?![ \t]*:)|[!-9;-~]*+:|[\t ])[^\r\n]*+(?:\r\n?+|\n|\Z))*+")
_BLANK_LINE = re.compile(rb"\r\n?+|\n|")
_LAST_LINE_END = re.compile(rb"(?:\r\n|\r|\n)\Z")
CHARSET = re.compile(rb"""\bcharset\*?\s*=\s*(?:3D)?["']?([^\s"';<>]+)""", re.IGNORECASE)
_CHARSET_WITHIN = 100_000
"""How many bytes of a mail are searched for its first charset."""
_LEADING = re.compile(rb"(?:\xef\xbb\xbf|[ \t]*+(?:\r\n?+|\n)|>From [^\r\n]*+(?:\r\n?+|\n))++")
"""Matches what some programs write before a mail: a byte order mark, empty lines, an escaped separator of an mbox."""
_EMPTY_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?=[\r\n])")
MAIL_FIELD = re.compile(
    rb"(?:from|to|cc|date|subject|message-id|received|(?:reply|envelope|delivered)-to|return-path|sender|status|in-reply-to"
    rb"|mime-version|(?:content|arc|dkim|list|resent|x)-[\w-]+|authentication-results|references)[ \t]*+:",
    re.IGNORECASE,
)
"""Matches the beginning of a header field that hardly any other line begins with."""
_FIELD = re.compile(rb"(?:([!-9;-~]++)[ \t]*+:|[ \t])")
_FOOTER = re.compile(
    rb"^[ \t]*+(?:[_*~#-]{2,}+|={3,}+|\S{1,30}+(?:[ \t]++\S{1,30}+)++"
    rb"|(?>(?:\S*?[^A-Za-z0-9+/=\s]){3})[^\r\n]*+)[ \t]*+\r?$",
    re.MULTILINE,
)
"""Matches a line that is text rather than base64, such as the first one that a mailing list adds."""
_ENCODING = re.compile(r"[\w-]+")
_UU = {"x-uuencode", "uuencode", "uue", "x-uue"}

_header_parser = BytesHeaderParser(policy=compat32)


class MailRefused(Exception):
    """The mail exceeds a limit that no ordinary mail reaches; the message says which."""


@dataclass(frozen=True, slots=True)
class Part:
    """Header fields, and the byte range of the content after them; `source` is the mail, or what a part of it
    encoded."""

    header: Message
    start: int
    end: int
    depth: int
    source: bytes


def readable_header(mail: bytes) -> bytes:
    """Return the mail without what comes before its header. Lines that do not belong into a header become parts of the
    field before them, because Python's parser ends the header there."""
    if leading := _LEADING.match(mail):
        mail = mail[leading.end() :]
    begun = _HEADER.match(mail)
    bad = begun.end() if begun else 0
    if bad >= len(mail) or mail[bad : bad + 1] in (b"\r", b"\n"):
        return mail
    empty = _EMPTY_LINE.search(mail, bad, bad + MAX_HEADER_BYTES)
    lines = mail[bad : empty.end() if empty else bad + MAX_HEADER_BYTES].splitlines(keepends=True)
    field_lines = [number for number, line in enumerate(lines) if MAIL_FIELD.match(line)]
    count = field_lines[-1] + 1 if field_lines else 0
    head = b"".join(
        (field[1] + b":" + line[field.end() :] if field[1] else line) if (field := _FIELD.match(line)) else b" " + line
        for line in lines[:count]
    )
    return mail[:bad] + head + mail[bad + sum(map(len, lines[:count])) :]


class MailParts:
    """The parts of one mail. Every method raises MailRefused if the mail exceeds a limit."""

    def __init__(self, mail: bytes) -> None:
        self._mail = mail
        charset = CHARSET.search(mail, 0, _CHARSET_WITHIN)
        self.charset = charset[1].decode("ascii", "replace") if charset else None
        """The first charset that the mail declares: what parts and fields without one are probably in."""
        self._began = thread_time()
        self._count = 0
        self._text_bytes = 0

    def top(self) -> Part:
        """Return the mail itself as a part."""
        return self._part(self._mail, 0, len(self._mail), depth=0)

    def inside(self, part: Part) -> list[Part]:
        """Return the parts of a `multipart`, or the mail in a `message`; empty for other types."""
        kind = part.header.get_content_maintype()
        if kind not in ("message", "multipart"):
            return []
        default = "message/rfc822" if part.header.get_content_type() == "multipart/digest" else "text/plain"
        for content in (part, self._unwrapped(part)):
            source, depth = content.source, part.depth + 1
            if kind == "multipart":
                parts = [self._part(source, start, end, depth, default) for start, end in self._ranges(content)]
                if parts:
                    return parts
            elif content is not part or not _is_encoded(part):
                return [self._part(source, content.start, content.end, depth)]
        return []

    def _unwrapped(self, part: Part) -> Part:
        """Return a part that is encoded as a whole, as some programs do, without its encoding."""
        source = _decoded(part.source[part.start : part.end], _encoding(part)) if _is_encoded(part) else b""
        return replace(part, start=0, end=len(source), source=source)

    def decoded(self, part: Part) -> bytes:
        """Return the bytes of a text without their transfer encoding; unchanged if they do not follow it."""
        size = part.end - part.start
        self._text_bytes += size
        if self._text_bytes > MAX_TEXT_BYTES:
            raise MailRefused(f"more than {MAX_TEXT_BYTES:,} bytes of text")
        self._check_time()
        return _decoded(part.source[part.start : part.end], _encoding(part))

    def _part(self, source: bytes, start: int, end: int, depth: int, default_type: str = "text/plain") -> Part:
        self._count += 1
        if self._count > MAX_PARTS:
            raise MailRefused(f"more than {MAX_PARTS:,} parts")
        if depth > MAX_DEPTH:
            raise MailRefused(f"parts nested more than {MAX_DEPTH} deep")
        self._check_time()
        header_match = _HEADER.match(source, start, end)
        header_end = header_match.end() if header_match else start
        if header_end - start > MAX_HEADER_BYTES:
            raise MailRefused(f"a header of more than {MAX_HEADER_BYTES:,} bytes")
        header = _header_parser.parsebytes(source[start:header_end])
        header.set_default_type(default_type)
        if sum(len(value) for name, value in header.raw_items() if name.lower() == "content-type") > _MAX_PARAMETERS:
            raise MailRefused(f"a Content-Type of more than {_MAX_PARAMETERS:,} bytes")
        blank = _BLANK_LINE.match(source, header_end, end)
        return Part(header, blank.end() if blank else header_end, end, depth, source)

    def _ranges(self, part: Part) -> Iterator[tuple[int, int]]:
        """Yield the ranges between the boundary lines of a multipart; none if there is no such line."""
        if (boundary := _boundary(part)) is None:
            return
        line = re.compile(rb"--" + re.escape(boundary) + rb"(--)?+[ \t]*+(?:\r\n?+|\n|\Z)")
        begun: int | None = None
        for boundary_line in line.finditer(part.source, part.start, part.end):
            self._check_time()
            if boundary_line.start() > part.start and part.source[boundary_line.start() - 1] not in b"\r\n":
                continue
            if begun == boundary_line.start():  # Consecutive boundary lines count as one.
                begun = boundary_line.end()
                continue
            if begun is not None:
                yield begun, _without_line_end(part.source, begun, boundary_line.start())
            if boundary_line[1]:
                return
            begun = boundary_line.end()
        if begun is not None:
            yield begun, part.end

    def _check_time(self) -> None:
        if thread_time() - self._began > MAX_SECONDS:
            raise MailRefused(f"more than {MAX_SECONDS:g} s to read")


def _without_line_end(source: bytes, start: int, end: int) -> int:
    """Return the end of the content: the line end before a boundary belongs to the boundary."""
    line_end = _LAST_LINE_END.search(source, max(start, end - 2), end)
    return line_end.start() if line_end else end


def _encoding(part: Part) -> str:
    encoding = _ENCODING.search(str(part.header.get("content-transfer-encoding", "")))
    return encoding[0].lower() if encoding else ""


def _is_encoded(part: Part) -> bool:
    """Whether the content needs decoding before its parts can be found; the standard forbids that."""
    return _encoding(part) in ("base64", "quoted-printable") and not _FIELD.match(part.source, part.start)


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
    match encoding:
        case "quoted-printable":
            return a2b_qp(data)
        case "base64":
            footer = _FOOTER.search(data)
            end = footer.start() if footer else len(data)
            text, rest = decode_base64(data[:end]), data[end:]
            return text + b"\n" * bool(text and rest and not text.endswith(b"\n")) + rest
        case name if name in _UU:
            return _uudecoded(data)
    return data


def _uudecoded(data: bytes) -> bytes:
    lines = io.BytesIO(data)
    if not any(line.startswith(b"begin ") for line in lines):
        return data
    decoded = bytearray()
    for line in lines:
        if line.strip() == b"end":
            break
        if line.isspace():
            continue
        try:
            decoded += a2b_uu(line)
        except UudecodeError:
            try:  # Some encoders write more bytes than the line declares.
                decoded += a2b_uu(line[: (((line[0] - 32) & 63) * 4 + 5) // 3])
            except UudecodeError:
                return data
    return bytes(decoded)
