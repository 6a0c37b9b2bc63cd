"""Finds runs of words that a text has copied from others, whatever the language, spelling and disguise.

Case, accents, compatibility forms, look-alike letters, invisible characters, punctuation and white space do not count.
Languages without spaces are compared by their letters.
"""

import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate

from learnloop_service.judges.injection import LOOK_ALIKE

_COPIED = 8
"""Number of words in a row that count as copied."""
_HAN_KANA = "\u3041-\u3096\u30a1-\u30fa\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_SOUTH_EAST = "\u0e01-\u0e4f\u0e81-\u0edf\u1000-\u109f\u1780-\u17d3"
"""Letters of Thai, Lao, Burmese and Khmer."""
_WORD = re.compile(rf"([{_HAN_KANA}])|([{_SOUTH_EAST}])|[^\W_{_HAN_KANA}{_SOUTH_EAST}]+")
_QUARTERS = {1: 2, 2: 1, None: 4}
"""Length of a match in quarters of a word, by its group: two characters, or four letters, count as a word."""
_UNWRITTEN = frozenset("\u0640\u115f\u1160\u3164\uffa0")
"""Letters that only fill space."""


class _Folded(dict[int, str]):
    """What a character is compared as, by its code point."""

    def __missing__(self, code: int) -> str:
        decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", chr(code)).casefold())
        self[code] = "".join(map(_compared, decomposed)).translate(LOOK_ALIKE)
        return self[code]


def _compared(character: str) -> str:
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    category = unicodedata.category(character)
    return "" if category[0] == "M" or category == "Cf" or character in _UNWRITTEN else character


_FOLDED = _Folded()


def plain(text: str) -> str:
    """Return the words of a text as they are compared, with a space around each."""
    return f" {' '.join(match[0] for match in _words(text))} "


def word_count(text: str) -> float:
    """Return how long a text is, in words."""
    return sum(_QUARTERS[word.lastindex] for word in _words(text)) / 4


def shared_runs(texts: Iterable[str], others: Iterable[str]) -> set[str]:
    """Return the runs of words that texts have in common with others."""
    ours = {run for text in texts for run, _, _ in _runs(_words(text))}
    return {run for text in others for run, _, _ in _runs(_words(text)) if run in ours} if ours else set()


def spans(text: str, runs: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the passages of a text that consist of some runs of words, each as it is written, with its first run."""
    positions = [index for index, character in enumerate(text) for _ in _FOLDED[ord(character)]]
    words = _words(text)
    passages: list[tuple[str, int, int]] = []
    for run, start, end in _runs(words):
        if run in runs and passages and start < passages[-1][2]:
            passages[-1] = (*passages[-1][:2], end)
        elif run in runs:
            passages.append((run, start, end))
    for run, start, end in passages:
        yield text[positions[words[start].start()] : positions[words[end - 1].end() - 1] + 1], run


def _words(text: str) -> list[re.Match[str]]:
    return list(_WORD.finditer(text.translate(_FOLDED)))


def _runs(words: Sequence[re.Match[str]]) -> Iterator[tuple[str, int, int]]:
    """Yield the shortest run from each word on that counts as copied: its text, first word, and the word after it."""
    lengths = [0, *accumulate(_QUARTERS[word.lastindex] for word in words)]
    end = 0
    for start in range(len(words)):
        while lengths[end] - lengths[start] < 4 * _COPIED:
            if end == len(words):
                return
            end += 1
        yield " ".join(word[0] for word in words[start:end]), start, end
