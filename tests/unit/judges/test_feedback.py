"""The judge `feedback`: what evidence makes of a candidate's score."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_sales.market import Market
from learnloop_service.environment.base import Scenario
from learnloop_service.judges.base import Candidate, Evidence, JudgeServices, Score
from learnloop_service.judges.feedback import ONLINE, build
from learnloop_service.judges.registry import build as build_by_name

SCENARIO = Scenario("train.0.1", "train", {"prospect": "Tolu Marend", "company": "Velmor", "goal": "book a call"})


class Known:
    """A source that has this evidence."""

    def __init__(self, *evidence: Evidence) -> None:
        self._evidence = evidence

    async def evidence(self) -> Sequence[Evidence]:
        return self._evidence


def evidence_of(
    id: str, citations: str, online: float | None = None, wins: float = 0.0, losses: float = 0.0
) -> Evidence:
    return Evidence(id, frozenset(citations), online, wins, losses)


def email(id: str = "new", citations: str = "ab") -> Candidate:
    written = {"subject": "a subject", "body": "Hi Tolu, a note.", "citations": list(citations)}
    return Candidate(id, {"email": written}, [])


async def score(
    candidate: Candidate, *evidence: Evidence, config: Mapping[str, Any] | None = None, scenario: Scenario = SCENARIO
) -> Score:
    judge = build(config or {}, JudgeServices(feedback=Known(*evidence)))
    return (await judge.judge(scenario, [candidate])).scores[0]


async def test_an_email_is_scored_by_what_came_of_it() -> None:
    score_of_a = await score(email("a"), evidence_of("a", "ab", 0.6), evidence_of("b", "ab", 0.0))
    assert score_of_a.value == 0.6
    assert score_of_a.parts == {"online": 0.6}


async def test_people_are_weighted_by_their_confidence() -> None:
    evidence = evidence_of("a", "ab", online=0.2, wins=1.5, losses=0.5)
    assert (await score(email("a"), evidence, config={"signal": "human"})).value == 0.75
    assert (await score(email("a"), evidence, config={"signal": "online"})).value == 0.2


async def test_a_new_email_is_estimated_from_those_that_cite_the_same() -> None:
    # Overlaps 2/2, 1/3 and 0; the mean of all three is 0.5.
    estimate = await score(
        email(), evidence_of("a", "ab", 0.8), evidence_of("b", "bc", 0.4), evidence_of("c", "xy", 0.3)
    )
    assert estimate.value == pytest.approx((1.0 * 0.8 + 1 / 3 * 0.4 + 0.5) / (1.0 + 1 / 3 + 1.0))
    assert "2 of 3 emails" in estimate.explanation


async def test_an_email_like_no_other_is_taken_for_average() -> None:
    estimate = await score(email(citations="z"), evidence_of("a", "ab", 0.8), evidence_of("b", "bc", 0.4))
    assert estimate.value == pytest.approx(0.6)
    assert (
        await score(email(citations=""), evidence_of("a", "", 0.8), evidence_of("b", "b", 0.4))
    ).value == pytest.approx(0.6)


async def test_evidence_without_the_signal_counts_for_nothing() -> None:
    only_liked = evidence_of("a", "ab", online=None, wins=1.0)
    assert (await score(email("a"), only_liked)).value is None
    estimate = await score(email("a"), only_liked, evidence_of("b", "ab", 0.4))
    assert estimate.value == pytest.approx(0.4)


async def test_without_evidence_there_is_no_score() -> None:
    for signal in ("online", "human"):
        estimate = await score(email(), config={"signal": signal})
        assert estimate.value is None
        assert f"no {signal} feedback" in estimate.explanation


async def test_no_final_email_is_a_zero_only_beside_emails_that_were_sent() -> None:
    none = Candidate("new", {"email": None}, [])
    assert (await score(none)).value is None
    assert (await score(none, evidence_of("a", "ab", 0.8))).value == 0.0


async def test_an_answer_that_is_no_email_is_scored_by_people_alone() -> None:
    answer = Candidate("a", {"answer": "14 March"}, [])
    liked, other = evidence_of("a", "", wins=3.0, losses=1.0), evidence_of("b", "", wins=1.0)
    assert (await score(answer, liked, other, config={"signal": "human"})).value == 0.75
    assert (await score(answer, other, config={"signal": "human"})).value is None
    assert (await score(answer, liked, other)).value is None


async def test_invented_evidence_is_named() -> None:
    estimate = await score(
        email(), Evidence("a", frozenset("ab"), 0.8, 0, 0, simulated=True), evidence_of("b", "b", 0.4)
    )
    assert "1 of 2 heard from the market simulator" in estimate.explanation
    assert list(estimate.parts) == ["online (market simulator)"]


EVIDENCE = st.builds(
    evidence_of,
    st.text("pqrs", min_size=3),
    st.text("abcd"),
    st.sampled_from((None, *ONLINE.values())),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)


@given(st.lists(EVIDENCE), st.text("abcd"), st.sampled_from(("online", "human")))
async def test_a_score_is_in_range_and_among_what_is_known(evidence: list[Evidence], cited: str, signal: str) -> None:
    estimate = await score(email(citations=cited), *evidence, config={"signal": signal})
    values = [item.online for item in evidence if item.online is not None]
    if signal == "human":
        values = [item.wins / (item.wins + item.losses) for item in evidence if item.wins + item.losses]
    assert (estimate.value is None) == (not values)
    if estimate.value is not None:
        assert min(values) - 1e-9 <= estimate.value <= max(values) + 1e-9


async def test_the_market_simulator_scores_each_email_and_says_so() -> None:
    outcome = {
        "email": {"subject": "Rellik for Velmor", "body": "word " * 20 + "?", "citations": ["a"]},
        **dict.fromkeys(("citations_read", "cited_product", "named_prospect", "named_company"), True),
    }
    judge = build({"market": {"seed": 7}}, JudgeServices(feedback=Known(evidence_of("a", "a", 1.0))))
    candidates = [Candidate("1", outcome, []), Candidate("2", outcome, []), Candidate("3", {"email": None}, [])]
    first, again, none = (await judge.judge(SCENARIO, candidates)).scores
    assert first == again
    assert first.value == max(ONLINE[event] for event in Market(7).events(SCENARIO.task, outcome))
    assert list(first.parts) == ["online (market simulator)"]
    assert none.value == 0.0
    assert all("market simulator" in score.explanation for score in (first, none))
    answer = await judge.judge(SCENARIO, [Candidate("1", {"answer": "no email"}, [])])
    assert answer.scores[0].value is None


@pytest.mark.parametrize(
    "config",
    [
        {"signals": "online"},
        {"signal": "offline"},
        {"signal": ["online"]},
        {"market": 7},
        {"market": {}},
        {"market": {"seed": True}},
        {"market": {"seed": 1.5}},
        {"market": {"seed": 1, "size": 2}},
        {"market": {"seed": 1}, "signal": "human"},
    ],
)
def test_a_bad_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"signal|market"):
        build(config, JudgeServices())


def test_it_is_registered() -> None:
    assert build_by_name("feedback", {"market": None}, JudgeServices()).name == "feedback"
