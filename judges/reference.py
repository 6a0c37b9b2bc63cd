"""The judge `reference`: compares an answer with the scenario's reference answer, by rules and without a model.

A reference that is a date or an amount is compared as a value: `14 March`, `March 14th` and `2026-03-14` agree,
so do `48,200 euros`, `€48200`, `48.200,00 EUR` and `48.2k EUR`. Any other matches if its words stand in the answer in a
row, whatever their case, accents, width and punctuation. Where a script has no spaces, each character counts as a word.
Either way the answer may not be much longer: it cannot win by repeating a whole mail.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cache

from learnloop_service.environment.base import Json, Outcome, Scenario
from learnloop_service.judges.base import Candidate, Judge, Judgement, JudgeServices, Score
from learnloop_service.judges.model_settings import check_names
from learnloop_service.judges.traits import JudgeTraits

NAME = "reference"
TRAITS = JudgeTraits(repeatable=True, checks=True)
NO_REFERENCE = "the scenario has no reference answer"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\b"
_YEAR = r"(?:,?\s+(?P<year>\d{4})\b)?"
_DATES = (
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}"),
    re.compile(rf"\b{_MONTH}\s+{_DAY}{_YEAR}"),
    re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})\b"),
)
_AMOUNT = re.compile(
    r"(?<![\w.])(?P<sign>-?)[€$£]?(?P<number>\d{1,3}(?:[ ']\d{3})+(?:[.,]\d+)?(?!\d)|\d+(?:[.,]\d+)*)"
    r"\s*(?P<scale>k|m|thousand|million)?\b"
)
_GROUPED = re.compile(r"\d{1,3}(?:[.,]\d{3})+")
_SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, None: 1.0}
_UNITS = {
    **dict.fromkeys(("€", "eur", "euro", "euros"), "EUR"),
    **dict.fromkeys(("$", "usd", "dollar", "dollars"), "USD"),
    **dict.fromkeys(("£", "gbp", "pound", "pounds"), "GBP"),
    **dict.fromkeys(("%", "percent"), "%"),
}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_BESIDE_A_VALUE = {*_UNITS, *_WEEKDAYS, "about", "at", "by", "in", "is", "it", "on", "the"}
"""Words beside which a reference still counts as a mere date or amount."""
_ARTICLES = ("the", "a", "an")
"""Articles, which an answer can leave out at the start of a reference."""
_EXTRA_WORDS = 7
"""How many words longer than the reference an answer can be by default: enough for a short sentence."""
_MAX_EXTRA_WORDS = 1_000
_SIGNS = str.maketrans("\u2212\u066b\u066c\u2018\u2019", "-.,''")
_ACCENTS = re.compile("(?<=[a-z\u03b1-\u03c9])[\u0300-\u036f]+|[\u0591-\u05c7\u064b-\u065f\u0670]")
"""Accents of Latin and Greek letters, and points of Hebrew and Arabic ones. Elsewhere a mark makes another letter."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese have no spaces between words."""

Day = tuple[int | None, int, int]
"""Year or None, month, day."""


def build(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the judge. Raises ValueError for a bad config."""
    check_names(NAME, config, ("extra_words",))
    most = config.get("extra_words", _EXTRA_WORDS)
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= _MAX_EXTRA_WORDS:
        raise ValueError(f"extra_words must be a whole number from 0 to {_MAX_EXTRA_WORDS}, not {most!r}")
    return ReferenceJudge(most)


class ReferenceJudge:
    """Scores 1.0 for the reference answer, 0.0 for any other; gives no score if the scenario has no reference."""

    name = NAME

    def __init__(self, extra_words: int = _EXTRA_WORDS) -> None:
        """An answer may have `extra_words` more words than the reference."""
        self._extra_words = extra_words

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        return None if isinstance(scenario.reference.get("answer"), str) else NO_REFERENCE

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        reference = scenario.reference.get("answer")
        return Judgement(
            [_score(candidate.outcome.get("answer"), reference, self._extra_words) for candidate in candidates]
        )


def _score(answer: Json, reference: Json, extra_words: int) -> Score:
    if not isinstance(reference, str):
        return Score(None, NO_REFERENCE)
    if not isinstance(answer, str) or not answer:
        return Score(0.0, "no answer was given")
    if same_answer(answer, reference, extra_words):
        return Score(1.0, f"{answer!r} says the same as {reference!r}")
    return Score(0.0, f"{answer!r} is not {reference!r}")


def same_answer(answer: str, reference: str, extra_words: int = _EXTRA_WORDS) -> bool:
    """Return whether the answer has the reference's date, amount or words. It must not add another date or amount."""
    answer, reference = _fold(answer), _fold(reference)
    if answer == reference:
        return True
    words, expected = _words(answer), _words(reference)
    if not expected or len(words) > len(expected) + extra_words:
        return False
    days, beside = dates_in(reference)
    if days and _BESIDE_A_VALUE.issuperset(_words(beside)):
        answer_days, _ = dates_in(answer)
        return len(answer_days) == len(days) and all(map(_same_day, answer_days, days))
    amounts = _amounts(reference)
    if len(amounts) == 1 and _BESIDE_A_VALUE.issuperset(_words(_AMOUNT.sub(" ", reference))):
        answer_amounts = _amounts(answer)
        same = bool(answer_amounts) and all(readings & amounts[0] for readings in answer_amounts)
        return same and not dates_in(answer)[0] and _units_agree(answer, reference)
    if expected[0] in _ARTICLES:
        expected = expected[1:] or expected
    return any(words[i : i + len(expected)] == expected for i in range(len(words) - len(expected) + 1))


def _fold(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold().translate(_SIGNS)
    return unicodedata.normalize("NFC", _ACCENTS.sub("", plain)).strip()


def words(text: str) -> list[str]:
    """Return the words that are compared."""
    return _words(_fold(text))


def _words(text: str) -> list[str]:
    """Return the words of a folded text. A sign before a number belongs to it, as `++` and `#` to a letter before."""
    return list(_word_pattern().findall(text))


@cache
def _word_pattern() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)).startswith("M"))
    one = rf"(?:(?![{_UNSPACED}])[\w{marks}])"
    return re.compile(rf"[{_UNSPACED}][{marks}]*|(?<![\w{marks}])-?(?=\d){one}+|{one}+(?:\+\+|#)?")


def dates_in(text: str) -> tuple[list[Day], str]:
    """Return the dates in the text, each once by month and day, and the text without them."""
    days: set[Day] = set()

    def take(match: re.Match[str]) -> str:
        month = match["month"]
        number = int(month) if month.isdecimal() else _MONTHS.index(month[:3]) + 1
        day = (int(match["year"]) if match["year"] else None, number, int(match["day"]))
        if not _exists(*day):
            return match[0]
        days.add(day)
        return " "

    for pattern in _DATES:
        text = pattern.sub(take, text)
    # Said once with its year and once without, it is still one date.
    with_year = {day[1:] for day in days if day[0] is not None}
    once = [day for day in days if day[0] is not None or day[1:] not in with_year]
    return sorted(once, key=lambda day: (day[1:], day[0] or 0)), text


def _exists(year: int | None, month: int, day: int) -> bool:
    try:
        date(year or 2000, month, day)
    except ValueError:
        return False
    return True


def _same_day(one: Day, other: Day) -> bool:
    return one[1:] == other[1:] and (one[0] is None or other[0] is None or one[0] == other[0])


def _amounts(text: str) -> list[frozenset[float]]:
    """Return the amounts in a text, each with all that it can mean: `1.250` is also 1250."""
    return [frozenset(_readings(match)) for match in _AMOUNT.finditer(text)]


def _readings(match: re.Match[str]) -> Iterator[float]:
    number, scale = re.sub("[ ']", "", match["number"]), _SCALES[match["scale"]]
    decimal = max(".,", key=number.rfind)
    whole, _, fraction = number.rpartition(decimal)
    is_grouped = _GROUPED.fullmatch(number) is not None and ("." not in number or "," not in number)
    readings = [number.replace(decimal, "")] if is_grouped else []
    if not is_grouped or (decimal == "." and number.count(".") == 1):
        readings.append(f"{re.sub('[.,]', '', whole)}.{fraction}" if whole else number)
    for digits in readings:
        yield round(float(digits) * scale * (-1 if match["sign"] else 1), 6)


def _units_agree(answer: str, reference: str) -> bool:
    """Return whether both name the same unit, or one of them names none."""
    named, expected = _units(answer), _units(reference)
    return not named or not expected or named == expected


def _units(text: str) -> set[str]:
    return {_UNITS[token] for token in re.findall(r"[€$£%]|[a-z]+", text) if token in _UNITS}
