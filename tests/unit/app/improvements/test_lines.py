"""The lines and the table of an improvement."""

import pytest

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.amounts import clock, duration, price
from learnloop_service.app.improvements.lines import (
    candidate_line,
    failures_line,
    pilot_line,
    price_line,
    price_table,
)
from learnloop_service.app.reports.format import NONE
from learnloop_service.app.schemas.improvements import CandidateOut, PriceOut
from tests.unit.app.improvements.figures import (
    PILOT,
    accepted,
    answer,
    as_it_is,
    candidate,
    improvement,
    pairs,
    pattern,
    refused,
    success,
)

REACHED = ImprovementStatus.REACHED
IMITATION = accepted(
    Rung.IMITATION, success(61, 64), success(141, 152), 5 / 3, evidence=pairs(42, 1, 64), answer=answer(414)
)


@pytest.mark.parametrize(
    ("tried", "text"),
    [
        (as_it_is(success(20, 64)), "as it is         31% [21, 43]   0:12"),
        (refused(Rung.PROMPT, "careful"), "prompt careful@1 not better on training tasks: 5 won, 6 lost of 32   0:15"),
        (IMITATION, "imitation        95% [87, 98]   accepted: 42 won, 1 lost of 64   1:40"),
        (
            candidate(Rung.GRPO, CandidateState.REFUSED, minutes=61, success=success(20, 64), evidence=pairs(8, 7, 64)),
            "GRPO             31% [21, 43]   not shown to be better: 8 won, 7 lost of 64   1:01:00",
        ),
        (
            candidate(Rung.MODEL, CandidateState.REFUSED, "a-model-with-a-long-name", reason="It is slow."),
            "model a-model-with-a-long-name refused: It is slow.",
        ),
        (
            candidate(Rung.MODEL, CandidateState.SKIPPED, reason="It costs more."),
            "model            skipped: It costs more.",
        ),
        (candidate(Rung.GRPO, CandidateState.TRAINING, minutes=0.5), "GRPO             is trained   0:30"),
        (candidate(Rung.PROMPT, CandidateState.UNREACHABLE, "x"), "prompt x@1       unreachable"),
    ],
)
def test_a_candidate_is_a_line(tried: CandidateOut, text: str) -> None:
    assert candidate_line(tried) == text


def test_every_state_has_a_line() -> None:
    for state in CandidateState:
        assert candidate_line(candidate(Rung.PROMPT, state, "x")).startswith("prompt x@1")


def test_the_pilot_is_a_line() -> None:
    assert pilot_line(PILOT) == (
        "pilot            on 64 training tasks: 17% sampled, 69% of the tasks solved in one of 8 attempts, "
        "71% of groups differ"
    )


def test_the_price_is_a_line() -> None:
    figures = improvement(REACHED, as_it_is(success(20, 64)), refused(Rung.PROMPT), IMITATION)
    assert price_line(figures) == "Price: 2:07 minutes in all. 1,000 answers: 410,000 tokens, as before."
    dear = accepted(Rung.MODEL, success(60, 64), None, 0.8, answer=answer(800, 0.002))
    assert price_line(improvement(REACHED, as_it_is(None), dear, usd=0.5)) == (
        "Price: 1 minute and $0.50 in all. 1,000 answers: 800,000 tokens and $2.00, instead of 410,000 tokens."
    )
    unmeasured = accepted(Rung.GRPO, success(60, 64), None, 0.8)
    assert price_line(improvement(REACHED, as_it_is(None), unmeasured)) == "Price: 1 minute in all."


def test_what_still_fails_is_a_line() -> None:
    some = pattern("wrong answer", 2, 3)
    assert failures_line(improvement(REACHED, as_it_is(None), pattern=some)) == (
        'Remaining: 3 of 64 tasks fail, 2 of them "wrong answer".'
    )
    one = improvement(REACHED, as_it_is(None), validation=1, pattern=pattern("x", 1, 1))
    assert failures_line(one) == 'Remaining: 1 of 1 task fails, 1 of them "x".'
    assert failures_line(improvement(REACHED, as_it_is(None))) is None


def test_prices_are_a_table() -> None:
    table = price_table(
        improvement(REACHED, as_it_is(success(20, 64), success(46, 152)), refused(Rung.PROMPT, "a|b"), IMITATION)
    )
    assert table.splitlines() == [
        "|  |  | validation | test | won, lost | price | 1,000 answers |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        f"| as it is | accepted | 31% [21, 43] | 30% [24, 38] | {NONE} | 12 seconds | 410,000 tokens |",
        rf"| prompt a\|b@1 | refused | {NONE} | {NONE} | {NONE} | 15 seconds | {NONE} |",
        "| imitation | accepted | 95% [87, 98] | 93% [88, 96] | 42, 1 | 1:40 minutes | 410,000 tokens |",
        "| all |  |  |  |  | 2:07 minutes |  |",
    ]


@pytest.mark.parametrize(
    ("minutes", "words", "figures"),
    [
        (1 / 60, "1 second", "0:01"),
        (59.4 / 60, "59 seconds", "0:59"),
        (59.6 / 60, "1 minute", "1:00"),
        (2.0, "2 minutes", "2:00"),
        (5 / 3, "1:40 minutes", "1:40"),
        (60.0, "1 hour", "1:00:00"),
        (65.5, "1:05 hours", "1:05:30"),
        (600.0, "10:00 hours", "10:00:00"),
    ],
)
def test_times_are_said_in_their_units(minutes: float, words: str, figures: str) -> None:
    assert duration(minutes) == words
    assert clock(minutes) == figures


def test_prices_are_in_dollars_if_anything_was_paid_in_them() -> None:
    for usd, text in ((None, "3 minutes"), (0.0, "3 minutes"), (0.004, "$0.0040")):
        assert price(PriceOut(minutes=3.0, tokens=0, usd=usd)) == text
