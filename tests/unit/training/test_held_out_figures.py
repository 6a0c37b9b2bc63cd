"""Figures of held-out evaluations on splits of any size: evaluation, difference, verdict and report count the same."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.reports.figures import figures as figures_of_report
from learnloop_service.app.statistics.verdict import verdict
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.scenario_order import different, draw
from learnloop_service.judges.base import Score
from learnloop_service.training.scoring import held_out_figures, successes
from learnloop_service.training.statistics.difference import MIN_CHANGED, difference
from learnloop_service.training.types import Rollout, ScoredRollout

Luck = tuple[bool, float | None]


def scored(scenario: str, number: int, success: bool, reward: float | None) -> ScoredRollout:
    rollout = Rollout(f"{scenario}-{number}", Scenario(scenario, "validation", {}), cast(Any, None), {"finish": "x"})
    return ScoredRollout(rollout, Score(reward, ""), reward, {}, success=success and reward is not None)


def evaluated(scenarios: Sequence[Scenario], samples: int, luck: Sequence[Luck]) -> list[ScoredRollout]:
    return [
        scored(scenario.id, number, *luck[(index * samples + number) % len(luck)])
        for index, scenario in enumerate(scenarios)
        for number in range(samples)
    ]


def row(iteration: int, rollouts: Sequence[ScoredRollout], samples: int, baseline: Any = None) -> dict[str, Any]:
    against_baseline = None if baseline is None else difference(baseline, successes(rollouts))
    figures = asdict(held_out_figures(rollouts, samples, by_scenario=True))
    labels = {"iteration": iteration, "split": "validation", "mode": "sampled", "step": iteration, "turns": 1.0}
    return {**labels, **figures, "difference": None if against_baseline is None else asdict(against_baseline)}


def report_of(rows: list[dict[str, Any]], evaluations: list[list[ScoredRollout]], samples: int) -> dict[str, Any]:
    """The part of a report that its verifier computes again."""
    ids = list(
        dict.fromkeys(scored_rollout.rollout.scenario.id for rollouts in evaluations for scored_rollout in rollouts)
    )
    batches = [
        {
            "iteration": item["iteration"], "kind": "evaluation", "split": "validation", "mode": "sampled",
            "step": item["step"],
            "rows": [
                [
                    row.rollout.id, ids.index(row.rollout.scenario.id), None, row.reward, row.success, "x", 1, "hash",
                ]
                for row in rollouts
            ],
        }
        for item, rollouts in zip(rows, evaluations, strict=True)
    ]  # fmt: skip
    judged = verdict(rows)
    return {
        "settings": {"evaluation": {"samples": samples, "seed": 0}},
        "scenarios": ids,
        "iterations": {"items": []},
        "evaluations": {"items": rows},
        "verdict": asdict(judged) | {"interval": judged.interval and list(judged.interval)},
        "run": {"best_step": None},
        "rollouts": {"batches": batches, "total": 0, "listed": sum(map(len, evaluations))},
        "digests": [],
        "examples": {"rule": "", "items": []},
    }


@given(
    tasks=st.integers(1, 200),
    requested=st.integers(1, 200),
    samples=st.integers(1, 3),
    lucks=st.tuples(*[st.lists(st.tuples(st.booleans(), st.sampled_from([0.5, 1.0])), min_size=1, max_size=9)] * 2),
)
def test_evaluation_difference_verdict_and_report_say_the_same(
    tasks: int, requested: int, samples: int, lucks: tuple[list[Luck], list[Luck]]
) -> None:
    pool = [Scenario(f"task.{number}", "validation", {}) for number in range(tasks)]
    used = different(list(draw(pool, requested, 0, 0)))
    evaluations = [evaluated(used, samples, luck) for luck in lucks]
    rows = [row(0, evaluations[0], samples)]
    rows.append(row(1, evaluations[1], samples, successes(evaluations[0])))
    count = min(tasks, requested)
    assert [len(rollouts) for rollouts in evaluations] == [count * samples] * 2, "each scenario once, with its samples"
    assert rows[1]["scenarios"] == rows[1]["difference"]["scenarios"] == count
    change = rows[1]["success"] - rows[0]["success"]
    assert change == pytest.approx(rows[1]["difference"]["mean"], abs=1e-12)
    judged = verdict(rows)
    assert judged.on is not None
    assert judged.on["scenarios"] == count
    assert judged.points == round(100 * rows[1]["difference"]["mean"], 1)
    assert f"{count} validation scenario{'' if count == 1 else 's'}, sampled" in judged.text
    assert ("too few to show any difference" in judged.text) == (count < MIN_CHANGED)
    if count < MIN_CHANGED:
        assert f" {count} scenario{' is' if count == 1 else 's are'} too few" in judged.text
    computed = [
        figure for figure in figures_of_report(report_of(rows, evaluations, samples)) if "example" not in figure.name
    ]
    wrong = [figure for figure in computed if not figure.agrees and not figure.name.startswith("rollouts: total")]
    assert not wrong
    assert {figure.name for figure in computed} > {"validation, sampled, step 1, after iteration 1: scenarios"}


@given(st.lists(st.lists(st.tuples(st.booleans(), st.sampled_from([None, 0.5, 1.0])), min_size=1, max_size=4)))
def test_means_are_those_of_the_scenarios_whatever_was_not_scored(lucks: list[list[Luck]]) -> None:
    rollouts = [
        scored(f"s{index}", number, *outcome) for index, luck in enumerate(lucks) for number, outcome in enumerate(luck)
    ]
    figures, rates = held_out_figures(rollouts, 1, by_scenario=True), successes(rollouts)
    assert figures.scenarios == len(lucks)
    assert figures.success == pytest.approx(sum(rates.values()) / len(rates) if rates else 0.0)


def test_earlier_versions_counted_rollouts_and_repeated_scenarios() -> None:
    rollouts = [scored("a", number, True, 1.0) for number in range(6)] + [scored("b", n, False, 0.0) for n in range(2)]
    before, now = (held_out_figures(rollouts, 2, by_scenario=by_scenario) for by_scenario in (False, True))
    assert before.scenarios == 4
    assert before.success == 0.75
    assert now.scenarios == 2
    assert now.success == 0.5


def test_what_was_scored_only_once_is_not_counted_as_compared() -> None:
    before = [scored(f"s{number}", 0, False, 1.0 if number < 2 else None) for number in range(24)]
    after = [scored(f"s{number}", 0, True, 1.0) for number in range(24)]
    judged = verdict([row(0, before, 1), row(1, after, 1, successes(before))])
    assert judged.text.endswith("Only 2 of them were scored both times, which is too few to show any difference.")
