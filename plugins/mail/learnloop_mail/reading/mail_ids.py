"""Short public ids of mails: words such as `kodimarutu`, made from the Message-ID.

An agent reads, copies and cites these ids, so they are short, pronounceable and different from the first letter on. The
same mail gets the same id in every import, unless it collides.
"""

from collections.abc import Iterable
from hashlib import blake2b

_CONSONANTS = "bcdfghjklmnpqrstvwxz"
_VOWELS = "aeiou"
_SYLLABLES = 5
"""With 100 possible values each: 10^10 ids."""


class MailIds:
    """Assigns each Message-ID a unique id."""

    def __init__(self, assigned: Iterable[tuple[str, str]] = ()) -> None:
        """`assigned` holds the ids that are already assigned, with their Message-IDs."""
        # Digests keep the Message-IDs of a million mails within some 200 MB.
        self._digests = {id: _digest(message_id) for id, message_id in assigned}

    def claim(self, message_id: str) -> str | None:
        """Return the id of a new mail, or None if the mail is known. If an id is taken, the next candidate is tried."""
        digest = _digest(message_id)
        attempt = 0
        while (id := _word(message_id, attempt)) in self._digests:
            if self._digests[id] == digest:
                return None
            attempt += 1
        self._digests[id] = digest
        return id


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


def _word(message_id: str, attempt: int) -> str:
    number = int.from_bytes(blake2b(f"{attempt} {message_id}".encode(), digest_size=8).digest())
    word = ""
    for _ in range(_SYLLABLES):
        number, consonant = divmod(number, len(_CONSONANTS))
        number, vowel = divmod(number, len(_VOWELS))
        word += _CONSONANTS[consonant] + _VOWELS[vowel]
    return word
