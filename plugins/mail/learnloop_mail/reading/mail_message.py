"""Decodes the bytes of one mail into sender, recipients, date, subject and a plain-text body."""

import re
from dataclasses import dataclass, replace
from datetime import datetime

from learnloop_mail.reading.html_text import html_to_text
from learnloop_mail.reading.mail_headers import header_text, mailboxes, moment
from learnloop_mail.reading.mail_text import clean_text, decode_bytes
from learnloop_mail.reading.mime_parts import CHARSET, MailParts, Part, readable_header

MAX_BODY_CHARACTERS = 200_000
_MAX_PART_BYTES = 4 * MAX_BODY_CHARACTERS
"""Most bytes of one part before decoding: the longest charset takes 4 bytes per character."""

_MESSAGE_ID = re.compile(r"<[^<>\s]+>")
_NO_MESSAGE_ID = re.compile(r"[\W_]*(?:none|null|nil|undefined|unknown|n/a)?[\W_]*", re.IGNORECASE)
"""Matches what programs write when they have no Message-ID: `<>`, `null`."""
_PAGE_CHARSET = re.compile(
    rb"""<(?:meta\b[^>]{0,300}?\bcharset|\?xml\b[^>]{0,100}?\bencoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
_PAGE_HEAD_BYTES = 10_000
_NOT_BODY = {"text/calendar", "text/directory", "text/rfc822-headers", "text/vcard", "text/x-vcard"}
"""Types of text for programs; they count as attachments."""

_MAIL_FIELDS = {"from", "sender", "to", "date", "subject", "message-id", "received", "return-path"}
"""Header fields of which any one shows that a file is a mail."""

_MAX_SUBJECT = 1_000


class NotAMail(Exception):
    """The bytes have no header field of a mail."""


@dataclass(frozen=True, slots=True)
class Body:
    """Readable text, and how it was obtained."""

    text: str = ""
    attachments: int = 0
    """Number of parts left out: files, images, signatures, calendar entries."""
    plain: bool = False
    """Whether some of the text was plain text."""
    html: bool = False
    """Whether some of the text was HTML."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class DecodedMail:
    """The parts of a mail that an inbox stores. If the mail lacks them, `message_id` is None and texts are empty."""

    message_id: str | None
    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    sent_at: datetime | None
    subject: str
    body: Body


def decode_mail(raw: bytes, envelope: str = "") -> DecodedMail:
    """Decode the bytes of a mail; `envelope` is the text after `From ` in an mbox. Raises NotAMail, MailRefused."""
    parts = MailParts(readable_header(raw))
    whole = parts.top()
    fields = _fields(parts, whole)
    if not _MAIL_FIELDS & fields.keys():
        raise NotAMail("no header field of a mail")
    envelope_sender, _, envelope_date = envelope.partition(" ")
    senders = mailboxes(fields.get("from", ())) or mailboxes(fields.get("sender", ())) or mailboxes([envelope_sender])
    return DecodedMail(
        message_id=_message_id(_first(fields, "message-id")),
        sender=senders[0] if senders else "",
        to=mailboxes(fields.get("to", ())),
        cc=mailboxes(fields.get("cc", ())),
        bcc=mailboxes(fields.get("bcc", ())),
        sent_at=_sent_at(fields, envelope_date),
        subject=header_text(_first(fields, "subject"))[:_MAX_SUBJECT],
        body=_bounded(_body(parts, whole)),
    )


def _fields(parts: MailParts, part: Part) -> dict[str, list[str]]:
    """Return raw values by lower-case name, in order; those with other bytes than ASCII are decoded."""
    fields: dict[str, list[str]] = {}
    for name, field in part.header.raw_items():
        value = str(field)
        if not value.isascii():
            value = decode_bytes(value.encode("utf-8", "surrogateescape"), None, parts.charset)
        fields.setdefault(name.strip().lower(), []).append(value)
    return fields


def _first(fields: dict[str, list[str]], name: str) -> str:
    return fields.get(name, [""])[0]


def _message_id(field: str) -> str | None:
    text = header_text(field)
    if _NO_MESSAGE_ID.fullmatch(text):
        return None
    match = _MESSAGE_ID.search(text)
    return match[0] if match else f"<{text.replace(' ', '')}>"


def _sent_at(fields: dict[str, list[str]], envelope_date: str) -> datetime | None:
    """Return the time of the Date field, else of the newest valid Received field, else of the envelope."""
    received = [field.rpartition(";")[2] for field in fields.get("received", ())]
    candidates = (*fields.get("date", ()), *received, envelope_date)
    return next(filter(None, (moment(header_text(text)) for text in candidates if text)), None)


def _bounded(body: Body) -> Body:
    """Cut the body to its limit."""
    text = body.text[:MAX_BODY_CHARACTERS]
    return replace(body, text=text, truncated=body.truncated or len(text) < len(body.text))


def _body(parts: MailParts, part: Part) -> Body:
    """Return the text of a part and all its subparts."""
    kind, main_kind = part.header.get_content_type(), part.header.get_content_maintype()
    # In a delivery report the part before it says the same in words.
    if main_kind == "message" and kind != "message/rfc822":
        return Body(attachments=1)
    if inner := parts.inside(part):
        if kind == "message/rfc822":
            return _forwarded(parts, inner[0])
        bodies = [_body(parts, child) for child in inner]
        return _best(bodies) if kind == "multipart/alternative" else _joined(bodies)
    if kind in _NOT_BODY or main_kind not in ("text", "multipart"):
        return Body(attachments=1)
    if part.header.get_content_disposition() == "attachment":
        return Body(attachments=1)
    return _text(parts, part, kind)


def _text(parts: MailParts, part: Part, kind: str) -> Body:
    data = parts.decoded(part)
    cut = len(data) > _MAX_PART_BYTES
    html = kind == "text/html"
    declared = CHARSET.search(str(part.header.get("content-type", "")).encode("utf-8", "replace"))
    named = _PAGE_CHARSET.search(data, 0, _PAGE_HEAD_BYTES) if html else None
    hint = named[1].decode("ascii", "replace") if named else parts.charset
    charset = declared[1].decode("ascii", "replace") if declared else None
    text = decode_bytes(data[:_MAX_PART_BYTES], charset, hint, cut=cut)
    text = clean_text(html_to_text(text) if html else text)
    return Body(text, plain=bool(text) and not html, html=bool(text) and html, truncated=cut)


def _forwarded(parts: MailParts, mail: Part) -> Body:
    """Return the text of a forwarded mail, under lines with its sender, date and subject."""
    fields = _fields(parts, mail)
    lines = [
        f"{name.title()}: {text}" for name in ("from", "date", "subject") if (text := header_text(_first(fields, name)))
    ]
    inner = _body(parts, mail)
    head = Body("\n".join(["Forwarded message", *lines]), plain=inner.plain)
    return _joined([head, inner])


def _best(choices: list[Body]) -> Body:
    """Return the first alternative with plain text, else the last with any text: alternatives are ordered from plain to
    rich."""
    readable = [choice for choice in choices if choice.text]
    plain = [choice for choice in readable if choice.plain]
    chosen = plain[0] if plain else readable[-1] if readable else Body()
    attachments = sum(choice.attachments for choice in choices)
    return replace(chosen, attachments=attachments)


def _joined(parts: list[Body]) -> Body:
    return Body(
        text="\n\n".join(part.text for part in parts if part.text),
        attachments=sum(part.attachments for part in parts),
        plain=any(part.plain for part in parts),
        html=any(part.html for part in parts),
        truncated=any(part.truncated for part in parts),
    )
