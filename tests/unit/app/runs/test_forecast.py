"""What a run is forecast to come to, from what its iterations used."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from learnloop_service.app.cli.run_report import forecast_text
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.runs.forecast import forecast, spent_until
from learnloop_service.training.statistics.learning_curve import CurvePoint
from learnloop_service.training.stopping import Stopping
from learnloop_service.training.types import EvaluationConfig, RunConfig, StopWhen
from tests.fakes.stored_request import stored_run

CONFIG = RunConfig(iterations=12, evaluation=EvaluationConfig(every=3, scenarios=20, samples=1, test_scenarios=40))


def used_until(iteration: int, usd: float | None = None) -> dict[tuple[int, bool], Mapping[str, float | None]]:
    """An iteration takes a minute, of which the first one takes five more; its evaluation takes another half, and that
    of the baseline three times as long."""
    used: dict[tuple[int, bool], Mapping[str, float | None]] = {
        (number, False): {"minutes": 6.0 if number == 1 else 1.0, "tokens": 100.0, "usd": usd}
        for number in range(1, iteration + 1)
    }
    for number in range(0, iteration + 1, 3):
        used[number, True] = {"minutes": 0.5 if number else 1.5, "tokens": 50.0, "usd": usd}
    return used


@pytest.mark.parametrize(("now", "minutes"), [(4, 8 + 3 * 0.5 + 1), (9, 3 + 0.5 + 1), (11, 1 + 0.5 + 1)])
def test_evaluations_count_apart_and_the_test_split_once(now: int, minutes: float) -> None:
    expected, low, high = spent_until(CONFIG, used_until(now), "minutes", now, 12) or (0, 0, 0)
    assert expected == pytest.approx(minutes, rel=0.05)
    assert low < minutes < high


def test_what_has_no_price_or_no_iterations_is_not_forecast() -> None:
    assert spent_until(CONFIG, used_until(6), "usd", 6, 12) is None
    assert spent_until(CONFIG, used_until(6, usd=0.5), "usd", 6, 12) is not None
    assert spent_until(CONFIG, used_until(1), "minutes", 1, 12) is None
    assert spent_until(CONFIG, used_until(12), "minutes", 12, 12) is None


def points_until(iteration: int, scenarios: int = 200) -> list[CurvePoint]:
    draw = np.random.default_rng(3)
    share = [0.2 + 0.06 * number for number in range(iteration + 1)]
    rates = [{str(n): float(draw.random() < share[i]) for n in range(scenarios)} for i in range(iteration + 1)]
    return [CurvePoint(i, share[i] if i else None, 64, rates[i] if i % 3 == 0 else None) for i in range(iteration + 1)]


def forecast_after(iteration: int, status: RunStatus = RunStatus.RUNNING, **rules: Any) -> Any:
    config = RunConfig(**{**vars_of(CONFIG), "stop_when": StopWhen(**rules) if rules else None})
    run = stored_run(status=status, next_iteration=iteration + 1)
    return forecast(run, Stopping(config, points_until(iteration)), used_until(iteration))


def vars_of(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


def test_a_forecast_says_first_what_it_cannot_say() -> None:
    begins = forecast_after(2)
    assert (begins.end, begins.twice) == ({}, {})
    assert begins.text == ["Forecasts begin after three iterations, and those of success after two evaluations."]
    costs = forecast_after(4)
    assert set(costs.end) == {"minutes", "tokens"}
    assert costs.text[0] == begins.text[0]
    whole = forecast_after(11)
    assert list(whole.end) == ["success", "minutes", "tokens"]
    assert whole.text[0].startswith("At the end: success 8")
    shown = {"forecast": whole.model_dump(), "status": "running"}
    assert forecast_text(shown) == " ".join(whole.text)
    assert forecast_text(shown | {"status": "completed"}) == forecast_text({"status": "running"}) == ""


def test_an_ended_run_says_which_rule_it_was_and_no_other_one_has_a_forecast() -> None:
    ended = forecast_after(9, RunStatus.COMPLETED, target=0.4)
    [text] = ended.text
    assert text.startswith(
        "It ended after 9 of 12 iterations, because its held-out success was shown to have reached the target. The"
    )
    assert "minutes [" in text
    assert forecast_after(9, RunStatus.COMPLETED, target=0.99) is None
    assert forecast_after(9, RunStatus.FAILED) is None
