"""Bytes of a mail as clean text. Nothing here raises, whatever the bytes are or claim to be."""

import codecs
import re

_ALIASES = {
    # What mailers declare -> the superset that they send.
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
_NO_CHARSETS = {"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"}
"""Codecs of Python that no mail uses: some take quadratic time, others run escapes."""

_DROPPED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\ufeff]")
"""Control characters, soft hyphens and the zero-width characters that newsletters pad with."""
_LINE_ENDS = str.maketrans("\r\v\f", "\n\n\n")


def decode_bytes(data: bytes, charset: str | None) -> str:
    """The bytes in their declared charset; if that is unknown or wrong in UTF-8, else in Windows-1252."""
    for candidate in (_codec(charset), "utf-8"):
        if candidate is None:
            continue
        try:
            return data.decode(candidate)
        except (UnicodeError, LookupError):
            continue
    return data.decode("cp1252", "replace")


def _codec(charset: str | None) -> str | None:
    """Python's codec for a declared charset; None leaves it to the bytes."""
    try:
        name = codecs.lookup((charset or "").strip().lower()).name
    except (LookupError, ValueError):  # a NUL in the name is a ValueError
        return None
    # Undeclared 8-bit text is more often UTF-8 than anything else, and plain ASCII is both.
    if name in _NO_CHARSETS or name == "ascii":
        return None
    return _ALIASES.get(name, name)


def clean_text(text: str) -> str:
    """Text with `\\n` line ends, no control characters, no trailing spaces and at most one blank line in a row."""
    text = text.replace("\r\n", "\n").translate(_LINE_ENDS)
    # Lone surrogates come out of UTF-7 and have no UTF-8 form, so that no database takes them.
    text = _DROPPED.sub("", text).encode("utf-8", "replace").decode("utf-8")
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def clean_line(text: str) -> str:
    """Text on one line, with single spaces."""
    if text.isascii() and text.isprintable():  # as nearly all are
        return " ".join(text.split())
    return " ".join(clean_text(text).split())
