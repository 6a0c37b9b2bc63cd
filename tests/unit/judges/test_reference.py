"""Which answers say the same as a reference answer."""

from calendar import month_abbr, month_name
from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.email_search.synthetic import make_world
from learnloop_service.judges.base import Candidate, JudgeServices, Score
from learnloop_service.judges.reference import build, same_answer

DATES = st.dates(date(1000, 1, 1), date(2999, 12, 31))
FORMS = (
    lambda day: f"{day.day} {month_name[day.month]}",
    lambda day: f"{day.day} {month_abbr[day.month].upper()}. {day.year}",
    lambda day: f"{month_name[day.month]} {day.day}, {day.year}",
    lambda day: f"on the {day.day}th of {month_name[day.month]}",
    lambda day: f"{month_abbr[day.month]} {day.day:02}",
    lambda day: day.isoformat(),
    lambda day: f"It is on {month_name[day.month]} {day.day} ({day.isoformat()}).",
)


@given(DATES, st.sampled_from(FORMS), st.sampled_from(FORMS))
def test_a_date_is_the_same_in_every_form(day: date, one: Any, other: Any) -> None:
    assert same_answer(one(day), other(day))


@given(DATES, DATES, st.sampled_from(FORMS), st.sampled_from(FORMS))
def test_another_day_is_another_date(day: date, another: date, one: Any, other: Any) -> None:
    expected = (day.month, day.day) == (another.month, another.day)
    if day.year == another.year or not expected:
        assert same_answer(one(day), other(another)) == expected


@given(st.integers(0, 999_999_999), st.sampled_from(("", " euros", " EUR", "€")))
def test_an_amount_is_the_same_in_every_form(cents: int, unit: str) -> None:
    forms = [f"{cents / 100:,.2f}{unit}", f"{cents / 100:.2f}{unit}", f"€{cents / 100}", f"It is {cents / 100}."]
    assert all(same_answer(one, other) for one in forms for other in forms[:3])


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_another_number_is_another_amount(one: int, other: int) -> None:
    assert same_answer(f"{one:,} euros", f"{other} EUR") == (one == other)


@given(st.text() | DATES.map(str), st.text() | DATES.map(str))
@example("½ ٣ march ٢٠٢٦", "\ud800\x00")
@example("31 February 2026", "0000-00-00")
@example("9" * 5000, "9" * 5000 + " million")
@example(" " * 5000 + "1" + " " * 5000, "1 of of of")
def test_no_text_makes_it_raise(answer: str, reference: str) -> None:
    assert isinstance(same_answer(answer, reference), bool)


@given(st.text())
def test_every_text_says_the_same_as_itself(text: str) -> None:
    assert same_answer(text, text)
    assert same_answer(f"  {text.upper()}", text.upper())


PIECES = st.sampled_from(
    ("14 March", "March 14th, 2026", "2026-03-14", "15 March", "48,200 euros", "48.2k", "$48200", "48200", "5%", "5")
)


@given(PIECES, PIECES)
def test_values_are_the_same_either_way_round(one: str, other: str) -> None:
    assert same_answer(one, other) == same_answer(other, one)


@given(st.lists(st.sampled_from(("Tolu", "Marend", "Velmor", "the", "14", "€")), max_size=20), st.randoms())
def test_an_answer_much_longer_than_the_reference_never_wins(words: list[str], rng: Any) -> None:
    answer = ["Tolu", "Marend", *words, *["more"] * 10]
    rng.shuffle(answer)
    assert not same_answer(" ".join(answer), "Tolu Marend")
    assert not same_answer(" ".join([*answer, "14 March"]), "14 March")
    assert not same_answer(" ".join(["more"] * 10 + ["48,200 euros"]), "48,200 euros")


@pytest.mark.parametrize("index", range(40))
def test_repeating_a_mail_does_not_win(index: int) -> None:
    """A sentence that states the fact is an answer; whatever else a mail says makes it one no more."""
    world = make_world("train", 0, index)
    mail = next(email for email in world.emails if email.id == world.source_id)
    sentences = [f"{sentence}." for sentence in mail.body.removesuffix(".").split(". ")]
    assert any(same_answer(sentence, world.answer) for sentence in sentences)
    whole_mail = f"From: {mail.sender}\nDate: {mail.sent_at:%d %b %Y}\nSubject: {mail.subject}\n\n{mail.body}"
    assert not same_answer(whole_mail, world.answer)
    if len(sentences) > 1:
        assert not same_answer(mail.body, world.answer)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("tolu  MAREND", "Tolu Marend"),
        ("The lead of Velmor is Tolu Marend.", "Tolu Marend"),
        ("Zoë", "Zoe"),
        ("the budget is about €48.2k", "48,200 euros"),
        ("1.5 million pounds", "£1.5m"),
        ("5 percent", "5%"),
        ("Saturday, 14 March 2026", "March 14"),
        ("14 March", "Saturday, 14 March 2026"),
        ("on 14 March 3 people come", "14 March"),
        ("3 rooms", "3 rooms"),
        ("👍", "👍"),
        ("at 10:30", "10:30"),
        ("“Kestrel”.", "kestrel"),
        ("Eiffel Tower", "The Eiffel Tower"),
        ("A", "A"),
        ("1.234,50 €", "1,234.50 EUR"),
        ("1 234,5", "1234.5"),
        ("1'234", "1,234"),
        ("1.250", "1250"),
        ("-5", "\u22125"),
        ("٤٨٬٢٠٠", "48200"),
        ("\uff21\uff22\uff23\uff11\uff12", "abc12"),
        ("STRASSE", "Straße"),
        ("Мой город", "мой ГОРОД."),
        ("答えは東京です。", "東京"),
        ("คำตอบคือกรุงเทพ", "กรุงเทพ"),
        ("शहर दिल्ली है", "दिल्ली"),
        ("مُحَمَّد", "محمد"),
        ("use C++.", "C++"),
    ],
)
def test_what_says_the_same(answer: str, reference: str) -> None:
    assert same_answer(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("Marend Tolu", "Tolu Marend"),
        ("Tolu", "Tolu Marend"),
        ("Tolumarend", "Tolu"),
        ("14 March or 15 March", "14 March"),
        ("14 March 2025", "14 March 2026"),
        ("14 March 2025 or 14 March 2026", "14 March"),
        ("12 marketing people", "12 March"),
        ("12 March", "12"),
        ("48,200 dollars", "48,200 euros"),
        ("48,200 or 48,300 euros", "48,200 euros"),
        ("5 euros", "5%"),
        ("30:10", "10:30"),
        ("14 March", "Tolu Marend, by 14 March"),
        ("3", "3 rooms"),
        ("", "14 March"),
        ("14 March", ""),
        ("The", "The Eiffel Tower"),
        ("B", "A"),
        ("-5", "5"),
        ("minus -5 degrees", "5 degrees"),
        ("1.25", "1,250"),
        ("1.234,50", "1.234"),
        ("C#", "C++"),
        ("мои", "мой"),
        ("かき", "がぎ"),
        ("हिन्दु", "हिन्दी"),
        ("北京", "東京"),
    ],
)
def test_what_does_not(answer: str, reference: str) -> None:
    assert not same_answer(answer, reference)


async def _scores(reference: Any, *answers: Any) -> Sequence[Score]:
    scenario = Scenario("s", "test", {}, reference)
    candidates = [Candidate(str(number), {"answer": answer}, []) for number, answer in enumerate(answers)]
    judgement = await build({}, JudgeServices()).judge(scenario, candidates)
    assert judgement.calls == ()
    return judgement.scores


async def test_every_candidate_gets_a_score_in_its_place() -> None:
    scores = await _scores({"answer": "14 March"}, "March 14", "15 March", None, "", 14, ["14 March"])
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert scores[0].explanation == "'March 14' says the same as '14 March'"
    assert scores[2].explanation == "no answer was given"
    assert await _scores({"answer": "14 March"}) == []


async def test_labels_leave_no_room_for_a_list_of_all() -> None:
    labels, judge = "billing, shipping or returns", build({"extra_words": 0}, JudgeServices())
    assert same_answer(labels, "shipping")
    candidates = [Candidate(answer, {"answer": answer}, []) for answer in (labels, "Shipping.")]
    judgement = await judge.judge(Scenario("s", "test", {}, {"answer": "shipping"}), candidates)
    assert [score.value for score in judgement.scores] == [0.0, 1.0]
    for wrong in ({"extra_words": -1}, {"extra_words": True}, {"words": 1}):
        with pytest.raises(ValueError, match="extra_words"):
            build(wrong, JudgeServices())


@pytest.mark.parametrize("reference", [{}, {"answer": None}, {"answer": 14}])
async def test_without_a_reference_there_is_no_score(reference: Any) -> None:
    assert [score.value for score in await _scores(reference, "14 March")] == [None]
    judge = build({}, JudgeServices())
    [score] = (await judge.judge(Scenario("s", "test", {}, {"answer": "x"}), [Candidate("1", {}, [])])).scores
    assert score.value == 0.0
