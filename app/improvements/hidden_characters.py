"""Finds characters that readers cannot see: with these, a text can say to a model what no person reads in it.

Some are honest. Persian and the languages of India join and separate letters with them, emoji are put together with
them, and Japanese and Mongolian choose forms of their characters.
"""

import re
from collections.abc import Iterator

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
"""Control and format characters, those for writing from right to left and for private use, and blank letters."""
_JOINED = "[\u0600-\u1fff\ua000-\uabff\U00010a00-\U00011fff\U0001e900-\U0001e95f]"
"""Letters of scripts that join them."""
_EMOJI = "[\xa9\xae\u203c-\u3299\U0001f000-\U0001faff]"
_NEEDED = re.compile(
    f"(?<={_JOINED})[\u200c\u200d](?![\u200c\u200d])|(?<![\u200c\u200d])[\u200c\u200d](?={_JOINED})"
    f"|(?:(?<={_EMOJI})|(?<=\ufe0f))\u200d(?={_EMOJI})|(?:(?<={_EMOJI})|(?<=[#*0-9]))[\ufe0e\ufe0f]"
    "|(?<=[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]|(?<=[\u1820-\u18aa])[\u180b-\u180d]"
    # The flags of England, Scotland and Wales are written with invisible letters.
    "|(?<=\U0001f3f4)\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074"
    "|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
"""Hidden characters where they are needed."""


def hidden_characters(text: str) -> Iterator[str]:
    """Yield the characters that cannot be seen and are not needed where they are."""
    yield from _HIDDEN.findall(_NEEDED.sub("", text))
