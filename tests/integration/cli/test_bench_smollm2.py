"""The benchmark that trains a model which others made, whole, with the tiny base model in its place."""

from pathlib import Path
from typing import Any

import pytest

from app.schemas.run_request import LearnLoopRequest
from benchmarks.learning.smollm2 import MODES, PLANS, STAGES, Plan, learn, prepare, request, stage_figures, table
from tests.integration.cli.test_data import archive
from training.engine.__main__ import TINY_BASE


@pytest.mark.long
def test_a_seed_is_compared_with_its_prompted_self(tmp_path: Path) -> None:
    archive(tmp_path / "mail.mbox", 60)
    plan = Plan(4, 4, 3e-4, iterations=3, groups=2, rollouts=4, validation=0, held_out=3, questions=60)
    prepare(tmp_path / "data", tmp_path / "mail.mbox", TINY_BASE, plan)
    said: list[str] = []
    found = learn(tmp_path / "data", plan, 0, None, said.append)
    assert [each["iteration"] for each in found["iterations"]] == [0, 1, 2, 3, 4, 5]
    steps = [each["step"] for each in found["iterations"]]
    assert steps[-1] - steps[2] > 1, "the checkpoint of the warm start is not one of the last two"
    for stage in STAGES:
        assert {mode: found["figures"][stage][mode]["rollouts"] for mode in MODES} == {"greedy": 3, "sampled": 3}
        read = [each for each in found["read"] if each["stage"] == stage]
        assert len(read) == 6
        assert all(each["messages"][1]["content"] == each["scenario"]["task"]["question"] for each in read)
    assert any("4 demonstrations" in line for line in said)
    assert table([found]).row_count == len(STAGES) * len(MODES)


@pytest.mark.parametrize("plan", PLANS)
def test_the_service_takes_each_plan(plan: str) -> None:
    whole = LearnLoopRequest.model_validate(request(PLANS[plan], 2, max_minutes=5))
    assert (whole.iterations, whole.seed, whole.budget and whole.budget.max_minutes) == (PLANS[plan].iterations, 2, 5)


def test_shares_are_those_of_the_rollouts() -> None:
    answered = {"outcome": {"turns": 3, "finish": "answered"}}
    prose = {"outcome": {"turns": 0, "finish": "malformed"}}
    no_such_tool = {"outcome": {"turns": 1, "finish": "malformed"}}
    found = stage_figures(_reported(0.5), [answered, prose, no_such_tool, answered])
    assert (found["called_a_tool"], found["malformed"]) == (0.75, 0.5)


def test_seeds_are_summed_up_in_a_row_of_their_own() -> None:
    outcomes = [{"outcome": {"turns": 1, "finish": "answered"}}]
    figures = [{mode: stage_figures(_reported(success), outcomes) for mode in MODES} for success in (0.25, 0.75)]
    found = table([{"seed": seed, "figures": dict.fromkeys(STAGES, each)} for seed, each in enumerate(figures)])
    successes = list(found.columns[3].cells)
    assert successes[:3] == ["25.0% [20.0%, 30.0%]", "75.0% [70.0%, 80.0%]", "50.0% +- 35.4%"]
    assert len(successes) == 3 * len(STAGES) * len(MODES)


def _reported(success: float) -> dict[str, Any]:
    """As a report has a model."""
    interval = {"mean": success, "low": success - 0.05, "high": success + 0.05}
    return {"success": interval, "reward": interval, "turns": interval, "difference": {}, "errors": {}, "rollouts": 1}
