"""Figures, intervals, and what is made of them to read."""

import xml.etree.ElementTree as ElementTree
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from learnloop_service.app.domain.stored_evaluation import Comparison, Contestant, Slot
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.evaluations.rendering import markdown, svg
from learnloop_service.app.evaluations.report import report_of
from learnloop_service.training.statistics.bootstrap import intervals


def request(*labels: str, scenarios: int = 2, samples: int = 1) -> Comparison:
    return Comparison(
        models=tuple(Contestant(label=label, kind="prompted", model="openai/x") for label in labels),
        environment=Choice(name="email_search"),
        judge=Choice(name="reference"),
        split="test",
        scenarios=scenarios,
        samples=samples,
        seed=0,
        temperature=0.0,
        max_turns=None,
        max_completion_tokens=256,
        rollout_timeout_s=300,
        concurrency=4,
    )


def row(slot: Slot, **changes: Any) -> Any:
    facts = {
        "success": True,
        "reward": 1.0,
        "score": 1.0,
        "error": None,
        "turns": 2,
        "prompt_tokens": 10,
        "undelivered_parts": None,
    }
    outcome = {"finish": "answered", "sources_correct": True} | changes.pop("outcome", {})
    return SimpleNamespace(slot=str(slot), outcome=outcome, completion_tokens=5, seconds=1.0, **facts | changes)


WRONG: dict[str, Any] = {"success": False, "reward": -1.0, "score": 0.0}


def test_a_scenario_counts_only_where_every_model_has_a_figure() -> None:
    rows = [
        row(Slot(0, 0, 0)),
        row(Slot(0, 1, 0), **WRONG),
        row(Slot(1, 0, 0), reward=None, score=None, success=False),  # the judge could not tell
        row(Slot(1, 1, 0)),
    ]
    report = report_of(request("a", "b"), rows, [None, 0.5])
    a, b = report["models"]
    assert report["compared"] == {"success": 1, "reward": 1, "sources": 2, "turns": 2}
    assert a["success"]["mean"] == 0.0
    assert b["success"]["mean"] == 1.0
    assert b["difference"]["success"]["mean"] == 1.0
    assert b["unscored"] == 1
    assert b["errors"] == {"unscored": 1}
    assert b["cost_usd"] == 0.5


def test_every_kind_of_error_is_told_apart() -> None:
    kinds: dict[str, dict[str, Any]] = {
        "failed": {"error": "no answer", "reward": None, "success": False},
        "gave_up": WRONG | {"outcome": {"finish": "gave_up"}},
        "malformed": WRONG | {"outcome": {"finish": "malformed"}},
        "unscored": {"reward": None, "score": None, "success": False},
        "wrong_answer": WRONG,
        "wrong_sources": {"success": False, "outcome": {"sources_correct": False}},
    }
    rows = [row(Slot(0, number, 0), **kinds[kind]) for number, kind in enumerate(kinds)] + [row(Slot(0, 6, 0))]
    [model] = report_of(request("a", scenarios=7), rows, [None])["models"]
    assert model["errors"] == dict.fromkeys(kinds, 1)
    assert model["success"]["mean"] == pytest.approx(1 / 6)  # a failed rollout is no success, an unscored one no figure


def test_models_that_never_answered_are_left_out_of_the_comparison() -> None:
    silent = {"error": "HTTP 401", "turns": 0, "success": False, "reward": None, "score": None}
    rows = [
        row(Slot(model, scenario, 0), **(silent if model == 1 else {})) for model in range(3) for scenario in (0, 1)
    ]
    report = report_of(request("a", "b", "c"), rows, [None, 0.0, None])
    assert [model["success"] and model["success"]["mean"] for model in report["models"]] == [1.0, None, 1.0]
    assert report["models"][2]["difference"]["success"]["mean"] == 0.0
    assert report["models"][1]["error"] == "none of its 2 rollouts got an answer: HTTP 401"
    assert report["compared"]["success"] == 2
    assert report["models"][1]["cost_usd"] is None
    assert "\nb has no figures: none of its 2 rollouts" in markdown("e", report)

    # Without figures of the first model there are no differences, and one rollout that was answered is enough.
    silent_first = [row(Slot(0, number, 0), **silent) for number in (0, 1)]
    answered = [row(Slot(1, 0, 0), **silent | {"turns": 1}), row(Slot(1, 1, 0), **silent)]
    first, second = report_of(request("a", "b"), [*silent_first, *answered], [None, None])["models"]
    assert first["success"] is None
    assert second["success"]["mean"] == 0.0
    assert second["difference"]["success"] is None
    assert second["error"] is None
    nobody = report_of(request("a"), silent_first, [None])
    assert nobody["models"][0]["success"] is None
    assert nobody["compared"]["success"] == 0


def test_samples_of_a_scenario_are_one_figure() -> None:
    rows = [row(Slot(0, 0, 0)), row(Slot(0, 0, 1), **WRONG), row(Slot(0, 1, 0)), row(Slot(0, 1, 1))]
    report = report_of(request("a", samples=2), rows, [None])
    assert report["models"][0]["success"]["mean"] == 0.75
    assert report["compared"]["success"] == 2


def test_without_a_figure_there_is_none() -> None:
    rows = [row(Slot(0, 0, 0), reward=None, outcome={"sources_correct": None})]
    report = report_of(request("a", scenarios=1), rows, [None])
    assert report["models"][0]["success"] is None
    assert report["models"][0]["sources"] is None
    assert "| a | - | - | - | - |" in markdown("e", report)
    ElementTree.fromstring(svg("e", report))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """60 samples of 60 scenarios have intervals of 95%; the differences of paired figures are narrower."""
    covered = 0
    for seed in range(60):
        chance = Random(seed)
        easy = [chance.random() < 0.6 for _ in range(60)]
        first = [float(is_easy) for is_easy in easy]
        second = [float(is_easy or chance.random() < 0.1) for is_easy in easy]
        [of_first, _], [_, difference] = intervals([first, second], seed)
        covered += of_first.low <= 0.6 <= of_first.high
        assert difference.high - difference.low < of_first.high - of_first.low
    assert 0.87 <= covered / 60 <= 1.0


def test_the_same_seed_gives_the_same_intervals() -> None:
    values = [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0]]
    assert intervals(values, 3) == intervals(values, 3)
    means, differences = intervals(values)
    assert [mean.mean for mean in means] == [0.5, 0.75]
    assert differences[0].low == 0.0
    assert differences[0].high == 0.0
    assert differences[1].mean == 0.25


def test_labels_cannot_break_out() -> None:
    hostile = "a|b\n</text><script>alert(1)</script>"
    report = report_of(request(hostile, "b", scenarios=1), [row(Slot(0, 0, 0)), row(Slot(1, 0, 0))], [None, None])
    assert "| a\\|b </text><script>" in markdown("e", report)
    drawn = svg("e", report)
    assert "<script" not in drawn
    ElementTree.fromstring(drawn)


def test_a_share_has_the_interval_of_wilson_a_difference_of_the_bootstrap() -> None:
    rows = [row(Slot(model, scenario, 0)) for model in (0, 1) for scenario in range(32)]
    _, right = report_of(request("a", "b", scenarios=32), rows, [None, None])["models"]
    for share in ("success", "sources"):
        assert right[share] == {"mean": 1.0, "low": pytest.approx(0.893, abs=1e-3), "high": 1.0}
    assert right["difference"]["success"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert right["reward"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
