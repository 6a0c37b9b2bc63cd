"""What is decided on a release, from counts alone."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.release_rules import KINDS, OUTCOME, RAMP, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseReason, ReleaseState
from learnloop_service.app.releases.decision import (
    Failures,
    ReleaseFacts,
    ReleaseVerdict,
    decide,
    failures_needed,
    weigh,
)
from learnloop_service.app.releases.forecast import Forecast, forecast_of
from learnloop_service.app.releases.words import forecast_note, lacks
from learnloop_service.training.statistics.two_arms import Cell, Counts

ALL = {name: kind.tolerance for name, kind in KINDS.items()}


def _rules(**changed: Any) -> ReleaseRules:
    usual: dict[str, Any] = {"ramp": RAMP, "guardrails": ALL, "outcome": OUTCOME, "window_hours": 168, "max_days": 60}
    return ReleaseRules(**{**usual, "at_end": "return", "skip_trial": False, **changed})


def _cells(share: float, candidate: tuple[int, int], stable: tuple[int, int]) -> Counts:
    """Bad and good units of each arm."""
    arms = ((True, candidate), (False, stable))
    return {Cell(share, arm, value): n for arm, both in arms for value, n in zip((1.0, 0.0), both, strict=True) if n}


GOOD = _cells(0.05, (0, 400), (80, 7600))
BAD = _cells(0.05, (30, 60), (24, 1200))


def _facts(**changed: Any) -> ReleaseFacts:
    usual: dict[str, Any] = {
        "state": ReleaseState.RUNNING,
        "stage": 0,
        "met": 60,
        "counts": dict.fromkeys(Guardrail, GOOD),
        "failures": Failures(),
        "days": 3.0,
    }
    return ReleaseFacts(**{**usual, **changed})


def _decided(rules: ReleaseRules | None = None, **changed: Any) -> tuple[ReleaseVerdict, ReleaseReason | None]:
    decision = decide(rules or _rules(), _facts(**changed))
    return decision.verdict, decision.reason


def test_each_verdict() -> None:
    bad = {**dict.fromkeys(Guardrail, GOOD), Guardrail.MALFORMED: BAD}
    assert _decided() == (ReleaseVerdict.NEXT_STAGE, None)
    assert _decided(met=29) == (ReleaseVerdict.KEEP, None)
    assert _decided(stage=2) == (ReleaseVerdict.KEEP, None)
    assert _decided(counts=bad) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.GUARDRAIL)
    assert _decided(days=60.0) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.TIME)
    assert _decided(_rules(at_end="promote"), days=60.0) == (ReleaseVerdict.PROMOTE, ReleaseReason.TIME)
    # The order: harm comes before the end, and the end before the next stage.
    assert _decided(_rules(at_end="promote"), days=60.0, counts=bad) == (
        ReleaseVerdict.ROLL_BACK,
        ReleaseReason.GUARDRAIL,
    )


def test_a_guardrail_without_a_value_yet_keeps_the_share() -> None:
    """Nothing measured is nothing ruled out."""
    missing = {name: GOOD for name in Guardrail if name is not Guardrail.SLOW}
    assert _decided(counts=missing) == (ReleaseVerdict.KEEP, None)


def test_a_held_release_is_only_taken_back() -> None:
    changed: dict[str, Any] = {"state": ReleaseState.HELD}
    assert _decided(**changed) == (ReleaseVerdict.KEEP, None)
    assert _decided(_rules(at_end="promote"), days=99.0, **changed) == (ReleaseVerdict.KEEP, None)
    assert _decided(counts={Guardrail.ERROR: BAD}, **changed) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.GUARDRAIL)
    both = Failures(9, 9, 9)
    assert _decided(failures=both, **changed) == (ReleaseVerdict.KEEP, None)


def test_without_a_fair_coin_no_evidence_is_trusted() -> None:
    """No user was observed with the candidate, as if its answers were lost."""
    unfair = {Guardrail.ERROR: _cells(0.05, (0, 0), (0, 400))}
    assert _decided(counts=unfair) == (ReleaseVerdict.HOLD, ReleaseReason.ASSIGNMENT)
    assert _decided(counts=unfair, state=ReleaseState.HELD) == (ReleaseVerdict.KEEP, None)
    assert _decided(counts=unfair, days=60.0) == (ReleaseVerdict.HOLD, ReleaseReason.ASSIGNMENT)
    # What looks like harm ends it all the same, but is not called harm.
    harm = {**unfair, Guardrail.MALFORMED: _cells(0.05, (20, 0), (0, 40))}
    assert _decided(counts=harm) == (ReleaseVerdict.ROLL_BACK, ReleaseReason.ASSIGNMENT)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (Failures(5, 2, 0), (ReleaseVerdict.ROLL_BACK, ReleaseReason.BREAKER)),
        (Failures(5, 3, 1), (ReleaseVerdict.ROLL_BACK, ReleaseReason.BREAKER)),
        (Failures(5, 3, 2), (ReleaseVerdict.HOLD, ReleaseReason.BACKEND_AWAY)),
        (Failures(3, 1, 1), (ReleaseVerdict.HOLD, ReleaseReason.BACKEND_AWAY)),
        (Failures(2, 1, 1), (ReleaseVerdict.KEEP, None)),
        (Failures(9, 0, 0), (ReleaseVerdict.KEEP, None)),
        (Failures(4, 9, 0), (ReleaseVerdict.KEEP, None)),
    ],
)
def test_the_breaker(failures: Failures, expected: tuple[ReleaseVerdict, ReleaseReason | None]) -> None:
    assert _decided(met=3, counts={}, failures=failures) == expected


def test_a_checkpoint_that_often_fails_needs_a_longer_row_for_the_breaker() -> None:
    assert failures_needed({}) == 5
    assert failures_needed({Guardrail.ERROR: _cells(0.5, (0, 0), (0, 10_000))}) == 3
    assert failures_needed({Guardrail.ERROR: _cells(0.5, (0, 0), (400, 9_600))}) == 6
    assert failures_needed({Guardrail.ERROR: _cells(0.5, (0, 0), (10_000, 0))}) == 24


@given(
    st.dictionaries(st.sampled_from(Guardrail), st.integers(0, 40), min_size=1),
    st.integers(0, 2),
    st.sampled_from((ReleaseState.RUNNING, ReleaseState.HELD)),
    st.floats(0, 100),
    st.builds(Failures, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
def test_whatever_happens_harm_is_never_promoted(
    bad: Mapping[Guardrail, int], stage: int, state: ReleaseState, days: float, failures: Failures
) -> None:
    counts = {name: _cells(0.2, (units, 40), (2, 160)) for name, units in bad.items()}
    facts = _facts(counts=counts, stage=stage, state=state, days=days, failures=failures)
    rules = _rules(at_end="promote")
    decision = decide(rules, facts)
    assert decision == decide(rules, facts)
    if any(weighing.alarms for weighing in decision.guardrails.values()):
        assert decision.verdict is ReleaseVerdict.ROLL_BACK
    if decision.verdict is ReleaseVerdict.NEXT_STAGE:
        assert all(weighing.passes for weighing in decision.guardrails.values())
        assert stage < 2
    if decision.verdict in (ReleaseVerdict.PROMOTE, ReleaseVerdict.NEXT_STAGE):
        assert state is ReleaseState.RUNNING


def test_guardrails_share_the_error_and_keep_their_tolerance() -> None:
    one = weigh(_rules(guardrails={Guardrail.SLOW: 0.3}), 1, Guardrail.SLOW, GOOD)
    six = weigh(_rules(), 1, Guardrail.SLOW, GOOD)
    assert six.harm_threshold - one.harm_threshold == pytest.approx(1.7917595)  # log 6
    assert one.level == 0.3
    assert six.level == 0.05
    assert weigh(_rules(), 2, Guardrail.SLOW, GOOD).level is None
    assert weigh(_rules(ramp=(0.01, 0.5)), 0, Guardrail.SLOW, GOOD).level == 0.2


def _lacks(state: ReleaseState, stage: int, met: int, counts: Mapping[Guardrail, Counts], **changed: Any) -> str | None:
    unit = changed.pop("unit", "user")
    rules = _rules(**{"guardrails": {Guardrail.MALFORMED: 0.02, Guardrail.COST: 0.05}, **changed})
    weighings = {name: weigh(rules, stage, name, counts.get(name, {})) for name in rules.guardrails}
    return lacks(rules, state, stage, met, weighings, None, unit)


def test_what_the_next_stage_lacks_is_one_sentence() -> None:
    running = ReleaseState.RUNNING
    assert _lacks(running, 0, 18, {Guardrail.COST: GOOD}) == (
        "The share becomes 20% when 12 more users have met the candidate and an increase of malformed replies above "
        "10 points is ruled out."
    )
    assert "when 12 more sessions have met" in str(_lacks(running, 0, 18, {}, unit="session"))
    assert _lacks(running, 0, 29, {Guardrail.COST: GOOD, Guardrail.MALFORMED: GOOD}) == (
        "The share becomes 20% when 1 more user has met the candidate."
    )
    assert _lacks(running, 0, 30, dict.fromkeys(Guardrail, GOOD)) == "The share becomes 20% with the next look."
    assert _lacks(running, 1, 30, {}) == (
        "The share becomes 50% when an increase of malformed replies and cost above 5 points is ruled out."
    )
    assert _lacks(running, 2, 30, {}) == (
        "This is the last stage: after 60 days every user gets the stable checkpoint again, unless a person promotes "
        "the candidate before."
    )
    assert "promoted, whatever its outcomes show" in str(_lacks(running, 2, 30, {}, at_end="promote"))
    better = str(_lacks(running, 2, 30, {}, goal="better"))
    assert better.endswith("unless outcomes show that the candidate is better before.")
    not_worse = str(_lacks(running, 2, 30, {}, goal="not_worse", margin=0.02))
    assert not_worse.endswith("unless outcomes show that the candidate is not worse by 2 points before.")
    assert "until a person resumes" in str(_lacks(ReleaseState.HELD, 0, 0, {}))
    assert _lacks(ReleaseState.PROMOTED, 2, 30, {}) is None


def _forecast(units_a_day: float, variance: float | None = None, **changed: Any) -> Forecast:
    return forecast_of(_rules(**changed), {"users": units_a_day, "days": 1, "variance": variance})


def test_a_forecast_says_when_each_stage_begins() -> None:
    many, twice = _forecast(600.0), _forecast(1_200.0)
    assert [day is not None for day in many.days] == [True, True, True]
    assert list(many.days) == sorted(day or 0 for day in many.days)
    assert many.enrolled_a_week == 4200
    assert twice.days[1] == pytest.approx((many.days[1] or 0) / 2)


@pytest.mark.parametrize(
    ("units_a_day", "variance", "shows"),
    [
        (
            40.0,
            None,
            "With 40 new users a day, 60 days can show +10 points, not +5. The last stage begins after 0.0 days",
        ),
        (150.0, None, "With 150 new users a day, 60 days can show +5 points, not +3."),
        (450.0, None, "With 450 new users a day, 60 days can show +3 points, not +2."),
        (40.0, 0.05, "With 40 new users a day, 60 days can show +5 points, not +3."),
        (20.0, None, "With 20 new users a day, 60 days can show +15 points, so do not wait for outcomes"),
        (3.0, None, "With 3 new users a day, 60 days can show no effect on outcomes, so do not wait for outcomes"),
        (0.0, None, "nothing can be forecast"),
    ],
)
def test_a_forecast_says_what_so_many_users_can_show(units_a_day: float, variance: float | None, shows: str) -> None:
    rules = _rules(ramp=(0.5,))
    assert shows in forecast_note(rules, _forecast(units_a_day, variance, ramp=(0.5,)), "user")
