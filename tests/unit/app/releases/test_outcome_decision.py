"""What outcomes decide on a release, from counts of closed windows alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnloop_service.app.domain.release_rules import KINDS, OUTCOME, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseReason, ReleaseState
from learnloop_service.app.releases.decision import Failures, ReleaseFacts, ReleaseVerdict, decide
from learnloop_service.app.releases.evidence import ReleaseEvidence
from learnloop_service.app.releases.outcome_test import REPORTED, SILENT, if_silence_matters, weigh_outcomes
from learnloop_service.app.releases.words import effect_found, quality
from learnloop_service.training.statistics.two_arms import Cell, Counts, EffectEstimate

VALUE = {"value": "resolved"}
BAD = {Cell(0.5, True, 1.0): 40, Cell(0.5, False, 0.0): 40}


def _rules(**changed: Any) -> ReleaseRules:
    usual: dict[str, Any] = {
        "ramp": (0.2, 0.5),
        "guardrails": {name: kind.tolerance for name, kind in KINDS.items()},
        "outcome": VALUE,
        "window_hours": 168,
        "max_days": 60,
        "at_end": "return",
        "skip_trial": True,
        "goal": "better",
    }
    return ReleaseRules(**{**usual, **changed})


def _outcomes(candidate: tuple[int, int], stable: tuple[int, int], forecast: float | None = None) -> Counts:
    """Good and bad outcomes of each arm."""
    arms = ((True, candidate), (False, stable))
    return {
        Cell(0.5, arm, value, forecast): units
        for arm, both in arms
        for value, units in zip((1.0, 0.0), both, strict=True)
        if units
    }


BETTER, WORSE, EQUAL = ((600, 400), (400, 600)), ((400, 600), (600, 400)), ((5_000, 5_000), (5_000, 5_000))


def _decided(
    reported: tuple[tuple[int, int], tuple[int, int]], rules: ReleaseRules | None = None, **changed: Any
) -> tuple[ReleaseVerdict, ReleaseReason | None]:
    facts: dict[str, Any] = {"state": ReleaseState.RUNNING, "stage": 1, "met": 60, "failures": Failures(), "days": 3.0}
    facts["counts"] = {REPORTED: _outcomes(*reported), **changed.pop("counts", {})}
    decision = decide(rules or _rules(), ReleaseFacts(**{**facts, **changed}))
    return decision.verdict, decision.reason


def test_each_claim_of_the_goal_better() -> None:
    assert _decided(BETTER) == (ReleaseVerdict.PROMOTE, ReleaseReason.OUTCOME)
    assert _decided(BETTER, stage=0) == (ReleaseVerdict.KEEP, None), "promoted only in the last stage"
    assert _decided(WORSE) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.HARM)
    assert _decided(WORSE, stage=0) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.HARM)
    assert _decided(EQUAL) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.NO_GAIN)
    assert _decided(EQUAL, _rules(worth=0.001)) == (ReleaseVerdict.KEEP, None)
    assert _decided(((5, 5), (5, 5))) == (ReleaseVerdict.KEEP, None)


def test_each_claim_of_the_goal_not_worse() -> None:
    rules = _rules(goal="not_worse", margin=0.05)
    assert _decided(EQUAL, rules) == (ReleaseVerdict.PROMOTE, ReleaseReason.OUTCOME)
    assert _decided(EQUAL, _rules(goal="not_worse", margin=0.005)) == (ReleaseVerdict.KEEP, None)
    assert _decided(WORSE, rules) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.HARM)
    slightly = ((4_800, 5_200), (5_000, 5_000))  # worse, but not by the margin
    assert _decided(slightly, rules) == (ReleaseVerdict.PROMOTE, ReleaseReason.OUTCOME)


def test_without_such_a_goal_outcomes_decide_nothing() -> None:
    rules = _rules(goal="guardrails")
    for outcomes in (BETTER, WORSE, EQUAL):
        assert _decided(outcomes, rules) == (ReleaseVerdict.KEEP, None)
    stored_before = {
        name: value for name, value in rules.model_dump(mode="json").items() if name not in ("goal", "worth")
    }
    assert ReleaseRules.parse(stored_before) == rules


def test_the_order_of_decisions() -> None:
    held: dict[str, Any] = {"state": ReleaseState.HELD}
    assert _decided(BETTER, **held) == (ReleaseVerdict.KEEP, None), "a held release is only taken back"
    assert _decided(WORSE, **held) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.HARM)
    malformed = {Guardrail.MALFORMED: BAD}
    assert _decided(BETTER, counts=malformed) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.GUARDRAIL)
    assert _decided(BETTER, days=99.0) == (ReleaseVerdict.PROMOTE, ReleaseReason.OUTCOME)
    assert _decided(EQUAL, days=99.0) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.NO_GAIN)
    assert _decided(((9, 9), (9, 9)), days=99.0) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.TIME)


def test_outcomes_of_an_unfair_coin_are_not_trusted() -> None:
    one_arm = ((400, 0), (0, 0))  # the outcomes of stable's users were lost
    assert _decided(one_arm) == (ReleaseVerdict.HOLD, ReleaseReason.ASSIGNMENT)
    assert _decided(((0, 400), (20, 0))) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.ASSIGNMENT)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from((0.0, 0.5, 1.0)), st.sampled_from((None, 0.3, 0.8))), max_size=80
    ),
    st.sampled_from((("guardrails", 0.0), ("better", 0.0), ("not_worse", 0.1))),
    st.integers(0, 1),
    st.sampled_from((ReleaseState.RUNNING, ReleaseState.HELD)),
    st.randoms(),
)
def test_whatever_was_counted_the_same_evidence_decides(
    units: Sequence[tuple[bool, float, float | None]], goal: tuple[str, float], stage: int, state: Any, chance: Random
) -> None:
    rules = _rules(goal=goal[0], margin=goal[1])

    def decision(order: Sequence[tuple[bool, float, float | None]]) -> Any:
        counts = Counter(Cell(0.5, *unit) for unit in order for _ in range(20))
        return decide(rules, ReleaseFacts(state, stage, 60, {REPORTED: counts}, Failures(), 1.0))

    found = decision(units)
    assert found == decision(chance.sample(units, len(units)))
    if found.reason in (ReleaseReason.OUTCOME, ReleaseReason.HARM, ReleaseReason.NO_GAIN):
        assert goal[0] != "guardrails"
    if found.verdict is ReleaseVerdict.PROMOTE:
        assert (stage, state) == (1, ReleaseState.RUNNING)
        assert found.outcome.low >= -goal[1] - 0.001, "what is promoted is what the interval shows"
    if found.reason is ReleaseReason.HARM:
        assert found.outcome.harm > found.outcome.better
    evidence = ReleaseEvidence.of(1, ReleaseFacts(state, stage, 60, {}, Failures(), 1.0), found)
    assert ReleaseEvidence.parse(evidence.json()) == evidence


def _found(cells: Mapping[str, Counts], confirmation: Sequence[EffectEstimate] = (), **changed: Any) -> str:
    rules, state = _rules(**changed), ReleaseState.CONFIRMED if confirmation else ReleaseState.RUNNING
    return quality(rules, state, cells, weigh_outcomes(rules, cells), 3_100, confirmation)


def test_the_effect_is_said_with_its_interval() -> None:
    found = _found({REPORTED: _outcomes((800, 670), (730, 740)), SILENT: {}})
    assert found.startswith("Neither better nor worse for users, as far as is shown: +4.8 points of `resolved` (95% ")
    assert found.endswith("at every look). 2,940 of 3,100 windows are closed.")
    assert _found({REPORTED: _outcomes(*BETTER)}).startswith("Better for users: +20.0 points of `resolved`")
    assert _found({REPORTED: _outcomes(*WORSE)}).startswith("Worse for users: -20.0 points")
    not_worse = _found({REPORTED: _outcomes(*EQUAL)}, goal="not_worse", margin=0.05)
    assert not_worse.startswith("Not worse for users by 5 points: +0.0 points")
    assert "Outcomes decide nothing here" in _found({}, goal="guardrails")
    assert "thumbs only" in _found({}, outcome=OUTCOME)
    assert "thumbs only" not in _found({}, outcome={"event": "call_booked"})
    assert effect_found(_rules(), weigh_outcomes(_rules(), {})).startswith("Nothing is shown")


def test_a_confirmation_is_said_with_both_windows() -> None:
    effects = [EffectEstimate(412, 0.031, -0.01, 0.072), EffectEstimate(412, 0.029, -0.012, 0.07)]
    assert _found({REPORTED: _outcomes(*BETTER)}, effects).endswith(
        "Confirmed by 412 new users: +3.1 (-1.0 to +7.2); in their second week +2.9 (-1.2 to +7.0)."
    )
    by_session = [effects[0], EffectEstimate(0, 0.0, -1.0, 1.0)]
    assert _found({}, by_session).endswith("Confirmed by 412 new users: +3.1 (-1.0 to +7.2).")


def test_if_the_arms_differ_in_what_is_reported_silence_is_shown_at_both_ends() -> None:
    """All of the candidate's content users are reported, and of the others' only half: the gain is one of reporting."""
    cells = {REPORTED: _outcomes((500, 200), (250, 200)), SILENT: _outcomes((0, 300), (0, 550))}
    assert _found(cells).startswith("Better for users")
    at_0, at_1 = if_silence_matters(cells)
    assert at_0[0] > 0 > at_1[1] - 0.1
    assert "More is reported of users in one arm" in _found(cells)
    alike = {REPORTED: _outcomes((500, 200), (450, 250)), SILENT: _outcomes((0, 300), (0, 300))}
    assert if_silence_matters(alike) == []
    booked = {REPORTED: _outcomes((500, 0), (250, 0)), SILENT: _outcomes((0, 500), (0, 750))}
    assert "More is reported" not in _found(booked, outcome={"event": "call_booked"})


@pytest.mark.parametrize(("effect", "most"), [(0.0, 5), (0.2, 40)])
def test_equal_candidates_are_rarely_promoted_and_better_ones_mostly(effect: float, most: int) -> None:
    """At every look of 40 releases; a repeated t-test would promote a third of the equal ones."""
    promoted = 0
    for seed in range(40):
        chance, counts = Random(seed), Counter[Cell]()
        for _ in range(12):
            for _ in range(50):
                arm = chance.random() < 0.5
                counts[Cell(0.5, arm, float(chance.random() < 0.4 + effect * arm), 0.4)] += 1
            verdict, _ = _decided(((0, 0), (0, 0)), counts={REPORTED: dict(counts)})
            if verdict is not ReleaseVerdict.KEEP:
                promoted += verdict is ReleaseVerdict.PROMOTE
                break
    assert promoted <= most
    assert (promoted >= 36) is (effect > 0)
