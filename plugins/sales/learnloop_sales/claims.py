"""Finds what an email claims and how much of it the sources say, by comparing words, without a model.

Every sentence is a claim except the greeting, sentences of mere courtesy or names, the sign-off, and the question at
the end. Words are compared without case and plural; the sources must have all numbers and names, and a number next to
what it counts. That finds inventions, but not a lie in the sources' own words.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean

_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_TIME_TO_MEET = re.compile(r"\b\d{1,3}(?::\d\d)?\s*(?:minutes?|mins?|[ap]m)\b|\b\d{1,2}:\d\d\b", re.IGNORECASE)
_SIGN_OFFS = {"best", "kind", "warm", "regards", "sincerely", "cheers", "thanks", "thank", "yours"}
_SIGNATURE_LINES = 4
_WORDS = files("learnloop_sales") / "words"
_EMPTY = frozenset((_WORDS / "empty.txt").read_text(encoding="utf-8").split())
"""Words that carry no meaning."""
_COURTESY = frozenset((_WORDS / "courtesy.txt").read_text(encoding="utf-8").split())
"""Stems of greetings, courtesy and appointments."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """`share` in [0, 1] of a claim's words that the sources have; 0 if they lack a number or a name of it."""

    share: float
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    stem: str
    first: bool

    @property
    def is_number(self) -> bool:
        return self.text[0].isdecimal()

    @property
    def is_name(self) -> bool:
        """Whether it is capitalised, and not only because a sentence begins with it."""
        return not self.first and self.text[0].isupper()


def sentences(body: str) -> list[str]:
    """Return the sentences of a body without its sign-off. A line break ends a sentence."""
    lines = [line for line in body.splitlines() if line.strip()]
    for index in range(max(1, len(lines) - _SIGNATURE_LINES), len(lines)):
        words = stems(lines[index])
        if 0 < len(words) <= 3 and lines[index].split()[0].strip(",.!").casefold() in _SIGN_OFFS:
            lines = lines[:index]
            break
    return [part.strip() for part in _SENTENCE_END.split("\n".join(lines)) if part.strip()]


def claims(body: str, excluded: Set[str], goal: Set[str]) -> list[str]:
    """Return the sentences that claim something. Stems in `excluded`, such as the prospect's name, need no source."""
    claimed = sentences(body)
    if claimed and asks(claimed[-1], goal) and not _boasts(claimed[-1], excluded):
        claimed.pop()
    return [sentence for sentence in claimed if any(t.stem not in _COURTESY for t in _content(sentence, excluded))]


def asks(sentence: str, goal: Set[str]) -> bool:
    """Whether the sentence is a question, or has every word of the goal (as stems)."""
    return sentence.endswith("?") or (bool(goal) and goal <= set(stems(sentence)))


def coverage(claim: str, sources: Sequence[Set[str]], excluded: Set[str]) -> Coverage:
    """Return how much of a claim the sources say; a source is the set of its `stems`."""
    tokens = _content(claim, excluded)
    source_stems = frozenset[str]().union(*sources)
    missing = tuple(token.text for token in tokens if token.stem not in source_stems)
    wrong = [
        token.text for index, token in enumerate(tokens) if not _is_supported(index, tokens, sources, source_stems)
    ]
    if wrong:
        return Coverage(0.0, tuple(wrong))
    return Coverage(fmean(token.stem in source_stems for token in tokens) if tokens else 1.0, missing)


def stems(text: str) -> list[str]:
    """Return the words that carry meaning, without case and plural; `%` is a word."""
    return [token.stem for token in _content(text, frozenset())]


def _is_supported(index: int, tokens: Sequence[_Token], sources: Sequence[Set[str]], source_stems: Set[str]) -> bool:
    """Return False for a name that no source has, and for a number that no source has with a word that follows it."""
    token = tokens[index]
    if not token.is_number:
        return not token.is_name or token.stem in source_stems
    counted = {after.stem for after in tokens[index + 1 : index + 3] if not after.is_number}
    return any(token.stem in source and (not counted or counted & source) for source in sources)


def _boasts(question: str, excluded: Set[str]) -> bool:
    """Return whether the closing question names a number or a name, and so claims something."""
    tokens = _content(_TIME_TO_MEET.sub(" ", question), excluded | _COURTESY)
    return any(token.is_number or token.is_name for token in tokens)


def _content(text: str, excluded: Set[str]) -> list[_Token]:
    return [token for token in _tokens(text) if token.stem not in excluded]


def _tokens(text: str) -> Iterator[_Token]:
    plain = unicodedata.normalize("NFKC", text).replace("%", " percent ")
    for index, match in enumerate(_WORD.finditer(plain)):
        word = match[0]
        stem = word.replace(",", "") if word[0].isdecimal() else _singular(word.casefold())
        if word[0].isdecimal() or (len(word) > 1 and word.casefold() not in _EMPTY):
            yield _Token(word, stem, index == 0)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
