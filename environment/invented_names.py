"""Invented names and values that exist nowhere else, so that a synthetic world can be searched but not memorised.

Every word is made of syllables. A hash of the word decides which split it can appear in, so the held-out splits share
no name and no value with `train`, whatever the seeds are.
"""

import calendar
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from learnloop_service.environment.base import Split

_ONSETS = ("b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "dr", "kr", "tr")
_VOWELS = ("a", "e", "i", "o", "u")
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
_ENDINGS = ("", "", "", "l", "n", "r", "s")
_MONTHS = calendar.month_name[1:]

T = TypeVar("T")


def split_of(value: str) -> Split:
    """Return the only split that can hold this name or value: 80% train, 10% validation, 10% test."""
    bucket = zlib.crc32(value.lower().encode()) % 10
    return "validation" if bucket == 8 else "test" if bucket == 9 else "train"


class Names:
    """Draws distinct names and values of one split from a random generator."""

    def __init__(self, rng: Random, split: Split) -> None:
        self._rng = rng
        self._split = split
        self._drawn: set[str] = set()

    def fresh(self, draw: Callable[[], str]) -> str:
        """Return the first result of `draw` that belongs to the split and has not been drawn before."""
        while True:
            value = draw()
            if split_of(value) == self._split and value not in self._drawn:
                self._drawn.add(value)
                return value

    def _word(self, syllables: int) -> str:
        return "".join(self._rng.choices(_SYLLABLES, k=syllables)) + self._rng.choice(_ENDINGS)

    def word(self, syllables: int = 2) -> str:
        """Return a lower-case word, such as `tolu`."""
        return self.fresh(lambda: self._word(syllables))

    def capitalised(self, syllables: int = 2) -> str:
        """Return a capitalised word, such as `Velmor`."""
        return self.fresh(lambda: self._word(syllables).capitalize())

    def project(self) -> str:
        """Return a project's name: one capitalised word of three syllables."""
        return self.capitalised(3)

    def company(self) -> str:
        """Return a company's name: one capitalised word of three syllables."""
        return self.capitalised(3)

    def person(self) -> str:
        """Return a first and a last name."""
        return f"{self.capitalised(2)} {self.capitalised(2)}"

    def date(self) -> str:
        """Return a day of the year, such as `14 March`."""
        return self.fresh(lambda: f"{self._rng.randint(1, 28)} {self._rng.choice(_MONTHS)}")

    def amount(self) -> str:
        """Return a sum of money, such as `48,200 euros`."""
        return self.fresh(lambda: f"{self._rng.randint(11, 989) * 100:,} euros")

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options, which can repeat."""
        return self._rng.choice(options)
