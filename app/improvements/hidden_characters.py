"""Finds characters that readers cannot see: with these, a text can say to a model what no person reads in it.

Some are honest. Persian and the languages of India join and separate letters with them, emoji are put together with
them, and Japanese names choose forms of their characters.
"""

import re
import unicodedata
from collections.abc import Iterator

_FLAGS = tuple(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
"""The flags that are written with invisible letters: those of England, Scotland and Wales."""
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2065\u2800\u3164\uffa0\ufff0\ufff1\ufff2\ufff3\ufff4\ufff5\ufff6\ufff7\ufff8"
)
"""Letters, signs and marks without a form, and code points that stay without one."""
_SIGNS = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
"""Signs for numbers, which can be seen although they are format characters."""
_JOINERS = frozenset("\u200c\u200d\u180e")
_EMOJI_VARIANTS = frozenset("\ufe0e\ufe0f")
_KEYCAPS = frozenset("#*0123456789\u203c\u2049\u2139\u3030\u303d")
"""Characters that are no symbols and have a variant as emoji."""
_JOINED_SCRIPT = re.compile(
    r"ADLAM|ARABIC|BALINESE|BENGALI|DEVANAGARI|GUJARATI|GURMUKHI|JAVANESE|KANNADA|KHMER|MALAYALAM|MANDAIC|MONGOLIAN"
    r"|MYANMAR|NKO|ORIYA|PHAGS-PA|SINHALA|SYRIAC|TAMIL|TELUGU|TIBETAN"
)
"""Scripts whose letters are joined, by the first word of their characters' names."""


def hidden_characters(text: str) -> Iterator[str]:
    """Yield the characters that cannot be seen and are not needed where they are: also those for writing from right to
    left, control characters other than tabs and line breaks, and characters for private use."""
    for flag in _FLAGS:
        text = text.replace(flag, "\U0001f3f4")
    for index, character in enumerate(text):
        if character.isascii() and (character.isprintable() or character in "\t\n\r"):
            continue
        if _is_hidden(character) and not _is_needed(text, index):
            yield character


def _is_hidden(character: str) -> bool:
    if character in _BLANK or _is_variant(character) or "\U000e0000" <= character <= "\U000e0fff":
        return True
    return unicodedata.category(character) in ("Cc", "Cf", "Co") and character not in _SIGNS


def _is_variant(character: str) -> bool:
    return (
        "\ufe00" <= character <= "\ufe0f"
        or "\U000e0100" <= character <= "\U000e01ef"
        or character in "\u180b\u180c\u180d\u180f"
    )


def _is_needed(text: str, index: int) -> bool:
    """Return whether the hidden character joins letters or emoji, or chooses the form of the character before it."""
    character, before, after = text[index], text[index - 1 : index], text[index + 1 : index + 2]
    if character in _EMOJI_VARIANTS:
        return _is_symbol(before) or (before != "" and before in _KEYCAPS)
    if _is_variant(character):
        return _script(before) == ("MONGOLIAN" if character < "\ufe00" else "CJK")
    if character not in _JOINERS:
        return False
    if not any(_JOINED_SCRIPT.fullmatch(_script(neighbour)) for neighbour in (before, after)):
        is_emoji = _is_symbol(before) or before in _EMOJI_VARIANTS
        return character == "\u200d" and is_emoji and _is_symbol(after)
    return not any(neighbour and unicodedata.category(neighbour) == "Cf" for neighbour in (before, after))


def _is_symbol(character: str) -> bool:
    return character != "" and unicodedata.category(character) in ("So", "Sm", "Sk")


def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0] if character else ""
