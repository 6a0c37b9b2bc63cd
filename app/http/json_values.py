"""Counts the values in a JSON text without parsing it: a one-megabyte list takes 60 MB as Python objects."""

_PIECE = 65_536
_STARTS = (b",", b"[", b"{")
"""One of these precedes each value except the outermost. They also precede keys, but each key comes with a value."""


def has_more_values(body: bytes, than: int) -> bool:
    """Return whether the text has more values. Takes milliseconds per megabyte; other threads can run in between."""
    if len(body) <= than:
        return False
    count = 0
    in_text = False
    rest = b""
    for start in range(0, len(body), _PIECE):
        piece = rest + body[start : start + _PIECE]
        rest = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        plain = piece.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        outside = b"".join(parts[in_text::2])
        in_text ^= len(parts) % 2 == 0
        count += sum(map(outside.count, _STARTS))
        if count > than:
            return True
    return False
