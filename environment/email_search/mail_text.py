"""Decodes bytes of a mail into clean text. Nothing here raises, whatever the bytes are or claim to be."""

import codecs
import re

_ALIASES = {
    # Maps the charset that mailers declare to the superset that they actually use.
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
_NO_CHARSETS = {"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"}
"""Python codecs that no mail uses: some take quadratic time, others interpret escapes."""

_DROPPED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\ufeff]")
"""Matches control characters, soft hyphens, and the zero-width characters that newsletters use as padding."""
_LINE_ENDS = str.maketrans("\r\v\f", "\n\n\n")


def decode_bytes(data: bytes, charset: str | None) -> str:
    """Decode the bytes in their declared charset; if that is unknown or wrong, in UTF-8 or else Windows-1252."""
    for candidate in (_codec(charset), "utf-8"):
        if candidate is None:
            continue
        try:
            return data.decode(candidate)
        except (UnicodeError, LookupError):
            continue
    return data.decode("cp1252", "replace")


def _codec(charset: str | None) -> str | None:
    """Return Python's codec for a declared charset; None if the bytes must decide."""
    try:
        name = codecs.lookup((charset or "").strip().lower()).name
    except (LookupError, ValueError):  # A NUL in the name raises ValueError.
        return None
    # Undeclared 8-bit text is UTF-8 more often than anything else, and plain ASCII is valid UTF-8.
    if name in _NO_CHARSETS or name == "ascii":
        return None
    return _ALIASES.get(name, name)


def clean_text(text: str) -> str:
    r"""Return text with `\n` line ends, no control characters, no trailing spaces and no two consecutive blank
    lines."""
    text = text.replace("\r\n", "\n").translate(_LINE_ENDS)
    # Decoding UTF-7 can yield lone surrogates, which have no UTF-8 form and which no database accepts.
    text = _DROPPED.sub("", text).encode("utf-8", "replace").decode("utf-8")
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def clean_line(text: str) -> str:
    """Return the text on one line, with single spaces."""
    if text.isascii() and text.isprintable():  # This holds for nearly all lines.
        return " ".join(text.split())
    return " ".join(clean_text(text).split())
