"""The words of a text, to tell whether two questions or tasks ask the same."""

import re
import unicodedata


def words_of(text: str) -> str:
    """Return a text that is the same for texts that differ only in case, accents, spaces and punctuation."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    return " ".join(
        re.findall(r"\w+", "".join(character for character in folded if not unicodedata.combining(character)))
    )
