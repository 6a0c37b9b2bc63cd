"""Decodes bytes of a mail into clean text. Nothing here raises, whatever the bytes are or claim to be."""

import codecs
import re
from base64 import b64decode
from functools import lru_cache

_ALIASES = {
    # Maps the charset that mailers declare to the superset that they actually use.
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "cp950",
}
_NAMES = {"utf8mb4": "utf-8", "cp51932": "euc_jp", **dict.fromkeys(("cp50220", "cp50221", "cp50222"), "iso2022_jp")}
"""Names that Python does not know."""
_WINDOWS = re.compile(r"(?:windows|win|cp|ms|x-cp)[-_]?(?=\d)")
_VARIANT = re.compile(r"^x-|(?<=\d)-[ie]$")
"""Matches what some names have before or after the usual one: `x-gbk`, `iso-8859-8-i`."""
_NO_CHARSETS = {"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"}
"""Python codecs that no mail uses: some take quadratic time, others interpret escapes."""
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ESCAPE = re.compile(rb"(\x1b(?:\$[@B]|\$?\([A-Z]))")
"""Matches what selects a character set within ISO-2022-JP."""
_LINE_END = re.compile(rb"[\r\n]")
_UNPAIRED = re.compile("[\ud800-\udfff]")
"""Matches half of a surrogate pair, which UTF-7 can hold and UTF-8 cannot."""

_DROPPED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\ufeff]")
"""Matches control characters, soft hyphens, and the zero-width characters that newsletters use as padding."""
_LINE_ENDS = str.maketrans("\r\v\f", "\n\n\n")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_MOST_PADDING = 100_000
"""With more, it is no sign of pieces that were joined."""
_NOT_BASE64 = bytes(set(range(256)) - set(_BASE64))


def decode_bytes(data: bytes, charset: str | None, hint: str | None = None, *, cut: bool = False) -> str:
    """Decode the bytes in their declared charset; if that is unknown or does not fit, in UTF-8, in the charset that
    something else suggests (`hint`), or else in Windows-1252.

    Bytes that do not fit become U+FFFD. If the bytes were `cut`, a character whose end is missing is left out.
    """
    text = _decoded(data, charset, hint, cut)
    return text if text.isascii() else _UNPAIRED.sub("\ufffd", text)


def _decoded(data: bytes, charset: str | None, hint: str | None, cut: bool) -> str:
    """Decode as `decode_bytes` does. The text can have half a surrogate pair."""
    if charset is None and data.isascii() and b"\x1b" not in data:  # This holds for nearly all header fields.
        return data.decode("ascii")
    declared = next((codec for bom, codec in _BOMS if data.startswith(bom)), None) or _codec(charset)
    if b"\x1b$" in data and data.isascii() and (declared is None or declared.startswith(("iso2022_jp", "utf-8"))):
        declared = "iso2022_jp"
    elif declared is not None and declared.startswith(("utf-16", "utf-32")) and b"\0" not in data:
        declared, hint = None, declared
    for codec in (declared, "utf-8"):
        text = None if codec is None else _strictly(data, codec, cut)
        if text is not None:
            return text
        if codec is not None and codec.startswith(("iso2022", "hz", "utf-7")) and data.isascii():
            return _leniently(data, codec)  # UTF-8 would fit as well.
    return _likeliest(data, declared, _codec(hint), cut)


def _likeliest(data: bytes, declared: str | None, hint: str | None, cut: bool) -> str:
    """Decode bytes that are valid neither in the declared charset nor in UTF-8."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    if len(re.findall(r"[^\x00-\x7f\ufffd]", text)) <= broken:
        codec = next((charset for charset in (declared, hint) if charset and not charset.startswith("utf-8")), "cp1252")
        text = _leniently(data, codec)
    return text.removesuffix("\ufffd") if cut else text


def _strictly(data: bytes, codec: str, cut: bool) -> str | None:
    """Return None for bytes that do not fit."""
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        ending = cut and error.start >= len(data) - 4
        return _strictly(data[: error.start], codec, cut=False) if ending else None
    except (UnicodeError, LookupError):
        return None


def _leniently(data: bytes, codec: str) -> str:
    try:
        if codec.startswith("iso2022_jp"):
            first, *pieces = _ESCAPE.split(data)
            return first.decode("ascii", "replace") + "".join(map(_iso2022_jp, pieces[::2], pieces[1::2]))
        if codec == "cp950" and (text := _strictly(data, "big5hkscs", cut=False)) is not None:
            return text
        return data.decode(codec, _NEC_ROWS if codec == "euc_jp" else "replace")
    except (UnicodeError, LookupError):
        return data.decode("cp1252", "replace")


def _iso2022_jp(escape: bytes, data: bytes) -> str:
    """Decode the bytes after an escape sequence. Python's codec lacks the rows that Windows and iPhones add."""
    if escape not in (b"\x1b$B", b"\x1b$@"):
        return (escape + data + b"\x1b(B").decode("iso2022_jp_ext", "replace")
    end = line_end.start() if (line_end := _LINE_END.search(data)) else len(data)
    double = bytes(byte | 0x80 if 0x20 < byte < 0x7F else byte for byte in data[:end])
    return double.decode("euc_jp", _NEC_ROWS) + data[end:].decode("ascii", "replace")


def _nec_row(error: UnicodeError) -> tuple[str, int]:
    """Read two bytes that are not in JIS X 0208 as Windows does, by their place in Shift_JIS."""
    assert isinstance(error, UnicodeDecodeError)
    row, cell = (byte & 0x7F for byte in (*error.object[error.start : error.start + 2], 0)[:2])
    if not (0x20 < row < 0x7F and 0x20 < cell < 0x7F):
        return "\ufffd", error.start + 1
    lead = (row - 1 >> 1) + (0x71 if row < 0x5F else 0xB1)
    trail = cell + (0x7E if row % 2 == 0 else 0x20 if cell > 0x5F else 0x1F)
    return _strictly(bytes((lead, trail)), "cp932", cut=False) or "\ufffd", error.start + 2


_NEC_ROWS = "learnloop.nec_rows"
codecs.register_error(_NEC_ROWS, _nec_row)


@lru_cache(maxsize=1_000)
def _codec(charset: str | None) -> str | None:
    """Return Python's codec for a declared charset; None if the bytes must decide."""
    declared = (charset or "").strip().lower()
    for name in (declared, _WINDOWS.sub("cp", declared), _VARIANT.sub("", declared)):
        try:
            codec = codecs.lookup(_NAMES.get(name, name)).name
        except (LookupError, ValueError):  # A NUL in the name raises ValueError.
            continue
        # Undeclared 8-bit text is UTF-8 more often than anything else, and plain ASCII is valid UTF-8.
        return None if codec in _NO_CHARSETS or codec == "ascii" else _ALIASES.get(codec, codec)
    return None


def decode_base64(data: bytes) -> bytes:
    """Decode base64. Other bytes are ignored, and so are missing padding and padding in the middle."""
    decoded, plain = bytearray(), data.translate(None, _NOT_BASE64)
    if plain.count(b"=") > _MOST_PADDING:
        plain = plain.replace(b"=", b"")
    for piece in re.findall(rb"[^=]++", plain):
        whole = piece[: len(piece) - (len(piece) % 4 == 1)]
        decoded += b64decode(whole + b"=" * (-len(whole) % 4))
    return bytes(decoded)


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
