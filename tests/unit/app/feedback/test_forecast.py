"""The forecast of outcomes is a ridge regression that depends neither on the order of rows nor on the user itself."""

from datetime import UTC, datetime, timedelta
from random import Random

import numpy as np
import pytest

from learnloop_service.app.feedback.forecast import Features, cross_fitted, fit, r_squared

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def _rows(count: int = 400, seed: int = 1) -> list[tuple[Features, float]]:
    """Answers to users who were content before, in three kinds of which one mostly fails."""
    random, rows = Random(seed), list[tuple[Features, float]]()
    for _ in range(count):
        kind, earlier, content = random.choice(("refund", "login", None)), random.randrange(6), random.random()
        features = Features(
            MONDAY + timedelta(hours=random.randrange(24 * 60)),
            is_new=earlier == 0,
            earlier=earlier,
            earlier_sum=earlier * content,
            prompt_tokens=random.randrange(1_000),
            tools=random.randrange(5),
            candidate=random.random() < 0.5,
            kind=kind,
        )
        rows.append(
            (features, float(random.random() < 0.2 + 0.5 * content * (earlier > 0) - 0.15 * (kind == "refund")))
        )
    return rows


def test_it_expects_what_the_rows_had() -> None:
    forecast, at = fit(_rows()), MONDAY + timedelta(days=30)
    content, discontent = (
        Features(at, is_new=False, earlier=5, earlier_sum=5 * mean, prompt_tokens=500, tools=2) for mean in (0.9, 0.1)
    )
    assert forecast.expected(content) > forecast.expected(discontent) + 0.2
    refund, login = (Features(at, prompt_tokens=500, tools=2, kind=kind) for kind in ("refund", "login"))
    assert forecast.expected(refund) < forecast.expected(login) - 0.05


def test_it_is_the_ridge_regression_of_the_literature() -> None:
    rows = _rows()
    forecast = fit(rows)
    table = np.array([forecast.columns(features) for features, _ in rows], dtype=float)
    outcomes = np.array([outcome for _, outcome in rows])
    weights = np.linalg.solve(table.T @ table + 20 * np.eye(table.shape[1]), table.T @ (outcomes - outcomes.mean()))
    assert forecast.weights == pytest.approx(weights, abs=1e-12)
    expected = np.clip(outcomes.mean() + table @ weights, 0, 1)
    assert [forecast.expected(features) for features, _ in rows] == pytest.approx(expected, abs=1e-12)


def test_the_order_of_the_rows_does_not_change_a_bit() -> None:
    rows = _rows()
    assert fit(Random(2).sample(rows, len(rows))) == fit(rows)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_expectations_stay_in_their_range(outcome: float) -> None:
    rows = [(Features(MONDAY, is_new=False, earlier=9, earlier_sum=9 * outcome), outcome)] * 500
    more = [(Features(MONDAY, is_new=False, earlier=9, earlier_sum=9 * (1 - outcome)), 0.5)] * 500
    forecast = fit([*rows, *more])
    far = Features(MONDAY, is_new=False, earlier=10_000, earlier_sum=10_000 * outcome)
    assert forecast.expected(far) == outcome


def test_without_rows_or_differences_the_mean_is_expected() -> None:
    features = Features(MONDAY)
    assert fit([]).expected(features) == 0.5
    assert fit([(features, 0.25)] * 20).expected(features) == 0.25


def test_eight_kinds_are_told_apart_the_commonest_first() -> None:
    rows = [(Features(MONDAY, kind=f"kind {number}"), 0.5) for number in range(10) for _ in range(20 - number)]
    assert fit(rows).kinds == [f"kind {number}" for number in range(8)]


def test_what_a_user_says_does_not_change_what_is_expected_of_that_user() -> None:
    rows = _rows(120)
    users = [f"user {number % 40}" for number in range(len(rows))]
    before = cross_fitted(rows, users)
    turned = [
        (features, 1 - outcome if user == "user 7" else outcome)
        for (features, outcome), user in zip(rows, users, strict=True)
    ]
    after = cross_fitted(turned, users)
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert all(is_same for is_same, user in zip(same, users, strict=True) if user == "user 7")
    assert not all(same)


def test_forecasts_explain_what_they_can() -> None:
    rows = _rows(2_000)
    outcomes = [outcome for _, outcome in rows]
    expected = cross_fitted(rows, [str(number) for number in range(len(rows))])
    assert 0.03 < r_squared(outcomes, expected) < 0.25
    assert r_squared(outcomes, outcomes) == 1.0
    assert r_squared([0.0, 1.0], [0.5, 0.5]) == 0.0
    assert r_squared([0.0, 1.0], [1.0, 0.0]) == -3.0
    assert r_squared([1.0, 1.0], [1.0, 1.0]) == r_squared([], []) == 0.0
