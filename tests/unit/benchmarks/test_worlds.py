"""Agents of scripted worlds have the success that their world says."""

from pathlib import Path

import pytest

from benchmarks.scripted.engine import Models
from benchmarks.scripted.worlds import REINFORCED, SUPERVISED, WORLDS, Agent

TASKS = [f"task {number}" for number in range(2_000)]


def success(agent: Agent, seed: int | None = None) -> float:
    return sum(agent.solves(task, seed) for task in TASKS) / len(TASKS)


@pytest.mark.parametrize(
    ("trained", "expected"),
    [((), 0.05), (((SUPERVISED, 2),), 0.62), (((SUPERVISED, 2), (REINFORCED, 1)), 0.83), (((REINFORCED, 3),), 0.97)],
)
def test_training_leads_to_the_success_of_the_world(trained: tuple[tuple[str, int], ...], expected: float) -> None:
    assert success(Agent("everything.1", trained)) == pytest.approx(expected, abs=0.03)
    assert success(Agent("everything.1", trained), seed=5) == pytest.approx(expected, abs=0.03)


def test_some_prompts_are_good() -> None:
    successes = [success(Agent("prompt-then-grpo.1", (), prompt)) for prompt in range(40)]
    good = [each for each in successes if each == pytest.approx(WORLDS["prompt-then-grpo"].prompt, abs=0.05)]
    others = [each for each in successes if each == pytest.approx(WORLDS["prompt-then-grpo"].as_it_is, abs=0.05)]
    assert len(good) + len(others) == 40
    assert 20 <= len(good) <= 36


def test_a_checkpoint_is_what_led_to_it_and_a_step_is_taken_once(tmp_path: Path) -> None:
    models = Models(tmp_path / "engine.sqlite")
    models.add("p/imitation", "prompt.3")
    assert [models.train("p/imitation", SUPERVISED, step) for step in (0, 0, 1)] == [True, False, True]
    models.add("p/grpo", "p/imitation@2")
    models.add("p/grpo", "prompt.3")  # there is one already
    models.train("p/grpo", REINFORCED, 0)
    assert models.agent("p/grpo@1", 4) == Agent("prompt.3", [(SUPERVISED, 2), (REINFORCED, 1)], 4)
    assert models.agent("p/grpo@0", None) == Agent("prompt.3", [(SUPERVISED, 2)])
    assert Models(tmp_path / "engine.sqlite").step("p/grpo") == 1
    assert models.step("p/other") is None
