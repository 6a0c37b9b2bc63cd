"""Header fields of real mail: encoded words, addresses, dates. Nothing here raises, whatever the field holds.

`email.policy.default` parses them as well, but it raises on some broken fields, which must only cost the field and not
the mail, and it is an order of magnitude slower.
"""

import re
from base64 import b64decode
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import groupby
from quopri import decodestring

from learnloop_mail.reading.mail_text import clean_line, decode_bytes
from learnloop_service.environment.email_search.mail_addresses import ENCODED_WORD, people

_MAX_FIELD = 64_000
"""Most characters of a field to read."""

_MAX_NAME = 200
_MAX_ADDRESS = 320
"""RFC 5321 allows 64 characters before the `@` and 255 after it."""

_PLAIN = re.compile(
    r"(?:(?:[a-z]{1,40} ){1,4}<\w{1,40}@[\w-]{1,40}\.\w{2,9}>|[\w-]{1,40}(?:\.[\w-]{1,40})?@[\w-]{1,40}\.\w{2,9})",
    re.I | re.A,
)
"""Matches most addresses, faster than they are parsed."""
_SPECIALS = re.compile(r'[()<>@,:;.\[\]"\\]')
_NOT_IN_ADDRESS = re.compile(r'[\s()<>,:;\[\]"\\]')
_IN_NAMES = str.maketrans({"\\": None, '"': "'", "<": "(", ">": ")"})
"""What could end a quoted name, or look like an address in it."""
_UNUSUAL_ADDRESS = re.compile(r'"[^"<>\\]+"@[\w.-]+|[^\s()<>,:;@\[\]"\\]+@\[[\w.:-]+\]')
"""Matches `"ann lee"@a.example` and `ann@[192.0.2.1]`."""


def header_text(field: str) -> str:
    """Return a raw field (undecodable bytes as surrogates, as `email` keeps them) as one line of text."""
    return clean_line(_decode_words(_raw_text(field)))


def _raw_text(field: str) -> str:
    cut = len(field) > _MAX_FIELD
    return decode_bytes(field[:_MAX_FIELD].encode("utf-8", "surrogateescape"), None, cut=cut)


def _decode_words(text: str) -> str:
    """Decode `=?charset?q?...?=` (RFC 2047). Neighbours in one charset are joined first, because some split a character
    between them."""
    tokens: list[tuple[str, bytes]] = []
    end = 0
    for word in ENCODED_WORD.finditer(text):
        gap = text[end : word.start()]
        if gap and not (tokens and gap.isspace()):
            tokens.append(("", gap.encode("utf-8", "replace")))
        tokens.append((word[1].lower(), _word_bytes(word)))
        end = word.end()
    tokens.append(("", text[end:].encode("utf-8", "replace")))
    return "".join(
        decode_bytes(b"".join(data for _, data in group), charset or "utf-8")
        for charset, group in groupby(tokens, key=lambda token: token[0])
    )


def _word_bytes(word: re.Match[str]) -> bytes:
    data = word[3].encode("utf-8", "replace")
    if word[2] in "qQ":
        return decodestring(data, header=True)
    try:
        return b64decode(data + b"===")
    except ValueError:
        return word[0].encode("utf-8", "replace")


def mailboxes(fields: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of raw fields, each as `Name <address>`, `"Name, with specials" <address>` or `address`."""
    return tuple(mailbox for field in fields for mailbox in _mailboxes(clean_line(_whole_entries(field))))


def _whole_entries(field: str) -> str:
    """Return the text of a field that is read, without an address that its limit cuts."""
    text = _raw_text(field)
    return text if len(field) <= _MAX_FIELD else text.rpartition(",")[0] or text


def _mailboxes(text: str) -> Iterable[str]:
    if all(map(_PLAIN.fullmatch, addresses := text.split(", "))):
        return addresses
    if "@" not in text and "@" in (decoded := _decode_words(text)):  # Some programs encode the whole field.
        text = clean_line(decoded)
    return filter(None, (_mailbox(name, address) for name, address in people(text)))


def _mailbox(name: str, address: str) -> str:
    name = clean_line(_decode_words(name)).translate(_IN_NAMES)[:_MAX_NAME]
    address = clean_line(_decode_words(address))[:_MAX_ADDRESS]
    if not _UNUSUAL_ADDRESS.fullmatch(address):
        address = _NOT_IN_ADDRESS.sub("", address)
    if not name:
        return address
    if _SPECIALS.search(name) or not address:
        name = f'"{name}"'
    return f"{name} <{address}>" if address else name


def moment(text: str) -> datetime | None:
    """Return the time in a date field, in UTC (also if it names no zone); None if it is invalid."""
    try:
        parsed = parsedate_to_datetime(clean_line(text[:200]))
        parsed = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return parsed if 1970 <= parsed.year <= 2100 else None
