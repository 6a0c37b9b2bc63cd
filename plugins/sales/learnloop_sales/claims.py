"""What an email claims, and how much of it its sources say: by words, no model asked.

Every sentence is a claim but the greeting, sentences of mere courtesy or names, the sign-off, and the question at the
end. Words are compared without case and plural; numbers and names must stand in the sources, and a number beside what
it counts. That finds what was invented, and cannot detect a lie in the sources' own words.
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
"""Words without a meaning of their own."""
_COURTESY = frozenset((_WORDS / "courtesy.txt").read_text(encoding="utf-8").split())
"""Stems of greetings, courtesy and appointments."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """`share` in [0, 1] of a claim's words that the sources say; 0 if a number or a name is not among them."""

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
        """Capitalised, and not only because a sentence begins with it."""
        return not self.first and self.text[0].isupper()


def sentences(body: str) -> list[str]:
    """The sentences of a body without its sign-off; a line break ends one too."""
    lines = [line for line in body.splitlines() if line.strip()]
    for place in range(max(1, len(lines) - _SIGNATURE_LINES), len(lines)):
        words = stems(lines[place])
        if 0 < len(words) <= 3 and lines[place].split()[0].strip(",.!").casefold() in _SIGN_OFFS:
            lines = lines[:place]
            break
    return [part.strip() for part in _SENTENCE_END.split("\n".join(lines)) if part.strip()]


def claims(body: str, known: Set[str], goal: Set[str]) -> list[str]:
    """The sentences that claim something. `known` are stems that need no source, such as the prospect's name."""
    found = sentences(body)
    if found and asks(found[-1], goal) and not _boasts(found[-1], known):
        found.pop()
    return [sentence for sentence in found if any(t.stem not in _COURTESY for t in _content(sentence, known))]


def asks(sentence: str, goal: Set[str]) -> bool:
    """Whether the sentence is a question, or has every word of the goal (as stems)."""
    return sentence.endswith("?") or (bool(goal) and goal <= set(stems(sentence)))


def coverage(claim: str, sources: Sequence[Set[str]], known: Set[str]) -> Coverage:
    """How much of a claim is said by the sources, each given as its `stems`."""
    tokens = _content(claim, known)
    said = frozenset[str]().union(*sources)
    missing = tuple(token.text for token in tokens if token.stem not in said)
    wrong = [token.text for place, token in enumerate(tokens) if not _is_held(place, tokens, sources, said)]
    if wrong:
        return Coverage(0.0, tuple(wrong))
    return Coverage(fmean(token.stem in said for token in tokens) if tokens else 1.0, missing)


def stems(text: str) -> list[str]:
    """The words that carry meaning, without case and plural; `%` is a word."""
    return [token.stem for token in _content(text, frozenset())]


def _is_held(place: int, tokens: Sequence[_Token], sources: Sequence[Set[str]], said: Set[str]) -> bool:
    """False for a name that no source has, and a number that no source has with one of the two words after it."""
    token = tokens[place]
    if not token.is_number:
        return not token.is_name or token.stem in said
    counted = {after.stem for after in tokens[place + 1 : place + 3] if not after.is_number}
    return any(token.stem in source and (not counted or counted & source) for source in sources)


def _boasts(question: str, known: Set[str]) -> bool:
    """Whether the closing question brings in a number or a name: it then claims something, as other sentences do."""
    tokens = _content(_TIME_TO_MEET.sub(" ", question), known | _COURTESY)
    return any(token.is_number or token.is_name for token in tokens)


def _content(text: str, known: Set[str]) -> list[_Token]:
    return [token for token in _tokens(text) if token.stem not in known]


def _tokens(text: str) -> Iterator[_Token]:
    plain = unicodedata.normalize("NFKC", text).replace("%", " percent ")
    for place, match in enumerate(_WORD.finditer(plain)):
        word = match[0]
        stem = word.replace(",", "") if word[0].isdecimal() else _singular(word.casefold())
        if word[0].isdecimal() or (len(word) > 1 and word.casefold() not in _EMPTY):
            yield _Token(word, stem, place == 0)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
