"""What counts as a claim, and when the sources say it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learnloop_sales.claims import asks, claims, coverage, sentences, stems
from learnloop_sales.synthetic import make_world

SOURCES = [set(stems("Invoices take the team 12 hours a week.")), set(stems("Tavo cuts the work on invoices by 30%."))]
KNOWN = {"pira", "zolem", "operation", "lead"}
GOAL = {"book", "call"}
FACTS = ["Invoices take the team 12 hours a week.", "Tavo cuts the work by 30 percent."]
BODY = f"Hi Pira, a note for Zolem. {' '.join(FACTS)} Shall we talk?"


def share(claim: str) -> float:
    return coverage(claim, SOURCES, KNOWN).share


def test_greeting_and_closing_question_are_no_claims() -> None:
    assert claims(BODY, KNOWN, GOAL) == FACTS


@pytest.mark.parametrize(
    "body",
    [
        "",
        "...",
        "Hello,\n\na short note for Zolem.\n\nBest regards,\nMara",
        "Dear Pira, I hope this message finds you well. Please book a call.",
        "Hi Pira! Do you have 15 minutes on Tuesday?",
        "As Operations Lead at Zolem, are you well?",
    ],
)
def test_courtesy_claims_nothing(body: str) -> None:
    assert claims(body, KNOWN, GOAL) == []


@pytest.mark.parametrize(
    "closing",
    ["Shall we talk about how Tavo saves 90 percent?", "May I show you what Korvane does?", "It is the best tool."],
)
def test_a_claim_at_the_end_is_one(closing: str) -> None:
    assert claims(f"Hi Pira. {closing}", KNOWN, GOAL) == [closing]


def test_a_question_before_the_end_claims() -> None:
    assert claims("Did you know that Tavo is free? Shall we talk?", KNOWN, GOAL) == ["Did you know that Tavo is free?"]


def test_the_sign_off_is_no_sentence() -> None:
    assert sentences("Hi Pira,\nShall we talk?\n\nBest,\nMara Velin\nSales") == ["Hi Pira,", "Shall we talk?"]
    assert sentences("Best tools win today.\nThanks to Tavo the team works less.")[-1].startswith("Thanks to Tavo")


@pytest.mark.parametrize(
    ("sentence", "does"),
    [("Shall we talk?", True), ("Please book a call.", True), ("Book two calls!", True), ("We made a call.", False)],
)
def test_a_question_or_the_goal_asks(sentence: str, does: bool) -> None:
    assert asks(sentence, GOAL) is does
    assert asks(sentence, set()) is sentence.endswith("?")


@pytest.mark.parametrize(
    "claim",
    [
        "Tavo cuts the work on invoices by 30 percent.",
        "Invoices take the TEAM 12 hours",
        "With Tavo, Zolem cuts its work on invoices.",
        "At Zolem the team's invoices take 12 hours.",
    ],
)
def test_what_the_sources_say_is_covered(claim: str) -> None:
    assert share(claim) == 1.0


@pytest.mark.parametrize(
    "claim",
    [
        "Tavo cuts the work on invoices by 31 percent.",
        "With Korvane the team cuts the work on invoices.",
        "Tavo takes the team 30 hours a week.",
        "Invoices take 1,200 hours.",
    ],
)
def test_an_invented_number_or_name_spoils_the_claim(claim: str) -> None:
    assert share(claim) == 0.0


def test_other_words_count_by_share() -> None:
    covered = coverage("Tavo cuts costs.", SOURCES, KNOWN)
    assert covered.share == pytest.approx(2 / 3)
    assert covered.missing == ("costs",)
    assert share("Tavo does not cut the work.") == pytest.approx(3 / 4)
    assert coverage("Tavo cuts work.", [], KNOWN).share == 0.0


@given(st.integers(0, 500), st.sampled_from(("train", "test")))
def test_a_node_quoted_is_covered_and_its_number_changed_is_not(index: int, split: str) -> None:
    world = make_world("test" if split == "test" else "train", 0, index)
    sources = [set(stems(node.content)) for node in world.graph.nodes.values()]
    for node in world.graph.nodes.values():
        assert coverage(node.content, sources, set()).share == 1.0
        number = next((word for word in node.content.split() if word.isdecimal()), None)
        if number is not None:
            assert coverage(node.content.replace(number, "907"), sources, set()).share == 0.0


@given(st.text(), st.lists(st.text(), max_size=3))
@example("½ ٣ % 1,2.3. ﬁ <b>?", ["\x00", "%"])
@example("a" * 5000 + "?" * 5000 + "\n" * 5000, ["1," * 5000])
def test_no_text_makes_it_raise(body: str, sources: list[str]) -> None:
    for claim in claims(body, KNOWN, GOAL):
        assert 0.0 <= coverage(claim, [set(stems(source)) for source in sources], KNOWN).share <= 1.0
