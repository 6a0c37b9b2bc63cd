"""Builds HTML in which every text is escaped, unless it is already markup."""

import re
from html import escape

UNSEEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters except tab and newline, characters that change the direction of text or have no width, and lone
surrogates. The dashboard marks the same ones (parts/text.js)."""


class Html(str):
    """Markup. Only this module makes it from text, by escaping."""


def visible(text: str) -> str:
    """Return the text with invisible characters replaced by visible marks."""
    return UNSEEN.sub(lambda match: _mark(ord(match[0])), text)


def _mark(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def text(value: object) -> Html:
    """Return a value as escaped text."""
    return value if isinstance(value, Html) else Html(escape(visible(str(value))))


def h(name: str, *children: object, **attributes: object) -> Html:
    """Return an element. `class_` is the attribute class, and `_` in other names becomes `-`. Children that are None or
    False are left out."""
    attribute_text = "".join(
        f' {attribute.rstrip("_").replace("_", "-")}="{text(value)}"'
        for attribute, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{attribute_text}>{joined(*children)}</{name}>")


def joined(*parts: object) -> Html:
    """Return the parts one after the other. Those that are None or False are left out."""
    return Html("".join(text(part) for part in parts if part is not None and part is not False))
