"""Search in languages that write no spaces between words, or that add to words: Chinese, Japanese, Korean and Thai.

The full-text index splits at spaces, which makes one word of a sentence. Here a run of such characters becomes its
overlapping pairs and its last character: 会議室 becomes 会議, 議室, 室. Then any part of the run is found: one
character as the beginning of a pair, several as pairs in a row. Other text stays exactly as it is.
"""

import re
from collections.abc import Iterator, Sequence
from unicodedata import normalize

_HAN = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = (
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"
)
_HANGUL = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa1-\uffdc"
_THAI = "\u0e01-\u0e3a\u0e40-\u0e4e"
_RUN = re.compile("[{0}]+(?:\n[{0}]+)*".format(_HAN + _KANA + _HANGUL + _THAI))
"""Matches a run; such texts are also wrapped within words."""
_WORD = re.compile(r"[^\W_]+")
_AS_LETTERS = {code: code - 0x0E00 + 0xE000 for code in range(0x0E01, 0x0E4F)}
"""Thai vowels and tones are marks, at which the index would split; private characters are letters to it."""


def indexed(text: str) -> str:
    """Return the text as the full-text index reads it."""
    if text.isascii():  # This holds for most mail.
        return text
    return _RUN.sub(lambda run: f" {' '.join(_pairs(run[0]))} ", text)


def with_all(keywords: Sequence[str]) -> str:
    """Return a query for texts that have all keywords; empty if these have no letter or digit."""
    return " AND ".join(_phrase([term]) for keyword in keywords for term in _terms(keyword))


def in_a_row(text: str) -> str:
    """Return a query for texts with the words of this one in a row; empty if it has none."""
    terms = list(_terms(text))
    return _phrase(terms) if terms else ""


def _pairs(run: str) -> list[str]:
    text = normalize("NFKC", run.replace("\n", ""))
    return [text[index : index + 2].translate(_AS_LETTERS) for index in range(len(text))]


def _terms(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the tokens of each word and run, and whether it is a run."""
    end = 0
    for run in _RUN.finditer(text):
        yield from (([word], False) for word in _WORD.findall(text[end : run.start()]))
        yield _pairs(run[0]), True
        end = run.end()
    yield from (([word], False) for word in _WORD.findall(text[end:]))


def _phrase(terms: Sequence[tuple[list[str], bool]]) -> str:
    tokens = [token for term, _ in terms for token in term]
    last, is_run = terms[-1]
    if is_run and len(last) > 1:  # The run can continue in the text that is searched.
        tokens.pop()
    return f'"{" ".join(tokens)}"' + " *" * (is_run and len(last) == 1)
