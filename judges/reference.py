"""The judge `reference`: compares an answer with the scenario's reference answer. No model, no key, no chance.

Dates and amounts are compared as values: `14 March`, `March 14th` and `2026-03-14` agree, so do
`48,200 euros`, `€48200` and `48.2k EUR`. Any other answer matches if the reference's words stand in it in a
row and it is not much longer; so an answer cannot win by repeating a whole mail.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import date

from environment.base import Json, Scenario
from judges.base import Attempt, Judge, Score

NAME = "reference"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s+(?P<year>\d{4}))?"
_DATES = (
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}\b"),
    re.compile(rf"\b{_MONTH}\s+{_DAY}\b{_YEAR}"),
    re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})\b"),
)
_AMOUNT = re.compile(r"(?<![\w.])[€$£]?(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)\s*(?P<scale>k|m|thousand|million)?\b")
_SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, None: 1.0}
_EXTRA_WORDS = 12
"""How many words an answer may have beyond the reference's own."""

Day = tuple[int | None, int, int]


def build(config: Mapping[str, Json]) -> Judge:
    """The judge; it has no settings. Raises ValueError if there are some."""
    if config:
        raise ValueError(f"the judge reference has no settings, not {', '.join(sorted(config))}")
    return ReferenceJudge()


class ReferenceJudge:
    """Scores 1.0 for the reference answer, 0.0 for another; none where the scenario has no reference."""

    name = NAME

    async def judge(self, scenario: Scenario, attempts: Sequence[Attempt]) -> list[Score]:
        reference = scenario.reference.get("answer")
        return [_score(attempt.outcome.get("answer"), reference) for attempt in attempts]


def _score(answer: Json, reference: Json) -> Score:
    if not isinstance(reference, str):
        return Score(None, "the scenario has no reference answer")
    if not isinstance(answer, str) or not answer:
        return Score(0.0, "no answer was given")
    if same_answer(answer, reference):
        return Score(1.0, f"{answer!r} says the same as {reference!r}")
    return Score(0.0, f"{answer!r} is not {reference!r}")


def same_answer(answer: str, reference: str) -> bool:
    """Whether the answer gives the reference's date, amount or words, and no other date or amount."""
    answer, reference = _fold(answer), _fold(reference)
    if expected_days := _days(reference):
        found = _days(answer)
        return len(found) == len(expected_days) and all(map(_same_day, found, expected_days))
    if _words_without_amounts(reference) <= _UNIT_WORDS and (expected_amounts := _amounts(reference)):
        # An answer may leave the currency out, but not name another.
        return _amounts(answer) == expected_amounts and _units(answer) <= _units(reference)
    words, expected = _words(answer), _words(reference)
    if not expected or len(words) > len(expected) + _EXTRA_WORDS:
        return False
    return any(words[i : i + len(expected)] == expected for i in range(len(words) - len(expected) + 1))


def _fold(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(character for character in plain if not unicodedata.combining(character))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _days(text: str) -> list[Day]:
    """Every date in the text once, by month and day."""
    days: set[Day] = set()
    for pattern in _DATES:
        for match in pattern.finditer(text):
            month = match["month"]
            number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
            year = int(match["year"]) if match["year"] else None
            if _exists(year, number, int(match["day"])):
                days.add((year, number, int(match["day"])))
    return sorted(days, key=lambda day: (day[1:], day[0] or 0))


def _exists(year: int | None, month: int, day: int) -> bool:
    try:
        date(year or 2000, month, day)
    except ValueError:
        return False
    return True


def _same_day(one: Day, other: Day) -> bool:
    return one[1:] == other[1:] and (one[0] is None or other[0] is None or one[0] == other[0])


def _amounts(text: str) -> set[float]:
    return {
        round(float(match["number"].replace(",", "")) * _SCALES[match["scale"]], 6) for match in _AMOUNT.finditer(text)
    }


def _words_without_amounts(text: str) -> set[str]:
    return set(_words(_AMOUNT.sub(" ", text)))


_CURRENCIES = {
    **dict.fromkeys(("€", "eur", "euro", "euros"), "EUR"),
    **dict.fromkeys(("$", "usd", "dollar", "dollars"), "USD"),
    **dict.fromkeys(("£", "gbp", "pound", "pounds"), "GBP"),
}
_UNIT_WORDS = {*_CURRENCIES, "about", "the", "is"}


def _units(text: str) -> set[str]:
    return {_CURRENCIES[token] for token in re.findall(r"[€$£]|[a-z]+", text) if token in _CURRENCIES}
