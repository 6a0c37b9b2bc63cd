"""The market simulator: invented, but always the same, and harder on careless emails than on good ones."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_sales.environment import SalesEmail
from learnloop_sales.market import TASTES, Market
from learnloop_service.environment.base import Json, Scenario
from learnloop_service.judges.feedback import ONLINE

STAGES = list(ONLINE)
CARELESS = {"subject": "Buy now", "body": "Our product is great.", "citations": []}


async def outcome_of(scenario: Scenario, email: Mapping[str, Json]) -> Mapping[str, Json]:
    """The outcome of a candidate that reads what the email cites, then sends it."""
    episode = SalesEmail().episode(scenario)
    for id in email["citations"]:
        await episode.call("get_relevant_context", {"node_id": id})
    await episode.call("finalize_email", email)
    return episode.outcome()


async def earned(market: Market, *, good: bool) -> float:
    """What emails to 200 prospects get on average."""
    values = []
    for scenario in SalesEmail().scenarios("test", 200, seed=3):
        outcome = await outcome_of(scenario, scenario.reference["email"] if good else CARELESS)
        values.append(max(ONLINE[stage] for stage in market.events(scenario.task, outcome)))
    return fmean(values)


@pytest.mark.parametrize("seed", [0, 1, 2, 12_345])
async def test_a_careless_email_gets_mostly_nothing_and_a_good_one_does_well(seed: int) -> None:
    assert await earned(Market(seed), good=False) < 0.05
    assert 0.4 < await earned(Market(seed), good=True) < 0.8


async def test_stages_come_in_their_order_and_always_the_same() -> None:
    fates = set()
    for scenario in SalesEmail().scenarios("test", 100, seed=0):
        outcome = await outcome_of(scenario, scenario.reference["email"])
        events = Market(5).events(scenario.task, outcome)
        assert events == STAGES[: len(events)]
        assert events == Market(5).events(scenario.task, outcome)
        fates.add(len(events))
    assert fates >= {1, 2, 6}


async def test_markets_differ() -> None:
    [scenario] = SalesEmail().scenarios("test", 1, seed=0)
    outcome = await outcome_of(scenario, scenario.reference["email"])
    assert len({Market(seed).interest(scenario.task, outcome) for seed in range(10)}) == 10


async def test_without_an_email_nothing_is_sent() -> None:
    [scenario] = SalesEmail().scenarios("test", 1, seed=0)
    assert Market(0).events(scenario.task, SalesEmail().episode(scenario).outcome()) == []


async def test_everything_that_it_likes_makes_it_like_an_email_more() -> None:
    [scenario] = SalesEmail().scenarios("test", 1, seed=0)
    good = await outcome_of(scenario, scenario.reference["email"])
    email = good["email"]
    worse: dict[str, dict[str, Any]] = {
        "one_question": {"email": email | {"body": email["body"].replace("?", ".")}},
        "length": {"email": email | {"body": email["body"] * 20}},
        "topic": {"email": email | {"citations": []}},
    } | {fact: {fact: False} for fact in TASTES if fact in good}
    assert set(worse) == set(TASTES)
    for taste, change in worse.items():
        assert Market(1).interest(scenario.task, {**good, **change}) < Market(1).interest(scenario.task, good), taste


@given(st.text(), st.text(), st.lists(st.text(), max_size=5), st.integers(), st.lists(st.booleans(), min_size=4))
def test_no_email_makes_it_fail(subject: str, body: str, citations: list[str], seed: int, facts: list[bool]) -> None:
    outcome = dict(zip(TASTES[:4], facts, strict=False)) | {
        "email": {"subject": subject, "body": body + "\ud800", "citations": [*citations, "\udfff"]}
    }
    assert 0.0 <= Market(seed).interest({"goal": "book a call"}, outcome) <= 1.0
    assert Market(seed).events({"goal": body}, outcome)[0] == "sent"
