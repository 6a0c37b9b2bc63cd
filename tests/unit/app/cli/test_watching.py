"""What a run that works shows where the console is not a terminal."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console

from learnloop_service.app.cli.pace import Pace
from learnloop_service.app.cli.terminal import Terminal
from learnloop_service.app.cli.watching import RunDisplay, iteration_lines, live_panel


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _run(iteration: int | None, phase: str, units: int, iterations: Sequence[Any] = ()) -> dict[str, Any]:
    return {
        "run_id": "R",
        "status": "running",
        "wait_reason": None,
        "queue": None,
        "progress": {"iteration": iteration, "iterations_total": 3, "phase": phase, "done": units, "total": 176},
        "iterations": list(iterations),
        "evaluations": [],
        "verdict": {"state": "too_early", "points": None, "text": "Too early to say."},
    }


def test_a_pipe_gets_a_line_for_each_phase_that_takes_long() -> None:
    clock, text = _Clock(), StringIO()
    with RunDisplay(Console(file=text, width=100), clock) as display:
        display.show(_run(None, "", 0))
        assert text.getvalue() == ""
        for now, units in ((1.0, 0), (2.0, 8), (4.0, 40), (6.5, 64), (17.0, 166)):
            clock.now = now
            display.show(_run(0, "evaluate", units))
        for now, phase, units in ((18.0, "rollout", 0), (19.0, "train", 1), (22.0, "train", 2), (99.0, "train", 3)):
            clock.now = now
            display.show(_run(1, phase, units))
    assert [line.split() for line in text.getvalue().splitlines()] == [
        ["baseline", "evaluating", "0/176", "1", "s"],
        ["iteration", "1/3", "rollouts", "0/176", "18", "s"],
        ["iteration", "1/3", "training", "3/176", "1:39"],
    ]


def test_a_terminal_shows_the_share_of_the_baseline_and_the_time_left() -> None:
    clock, text = _Clock(), StringIO()
    console = Console(file=text, width=100, force_terminal=True)
    pace = Pace(clock)
    for now, units, line in (
        (0.0, 40, "40/176 (23%)   "),
        (1.0, 48, "48/176 (27%)   "),
        (4.0, 88, "about 7 s left   "),
    ):
        clock.now = now
        text.truncate(0)
        console.print(live_panel(_run(0, "evaluate", units), now, (), pace.left_s(_run(0, "evaluate", units))))
        assert line in text.getvalue()
    clock.now = 9.0  # another phase begins at its own pace
    assert pace.left_s(_run(1, "rollout", 8)) is None


def test_figures_take_the_place_of_progress() -> None:
    clock, text = _Clock(), StringIO()
    row = {"iteration": 1, "rewards": {"mean": 0.5}, "success": 0.5, "malformed": 0.0, "step": 1}
    with RunDisplay(Console(file=text, width=100), clock) as display:
        display.show(_run(1, "train", 3))
        clock.now = 6.0
        display.show(_run(2, "rollout", 0, [row]))
        clock.now = 10.0
        display.show(_run(2, "rollout", 9, [row]))
    first, second = text.getvalue().splitlines()
    assert "training" in first
    assert second.startswith("iteration   1   reward")


def _imitation(iteration: int, loss: float, held_out: tuple[float, float] | None = None) -> dict[str, Any]:
    before, after = held_out or (None, None)
    learned = {"demonstrations": 32, "loss": loss, "held_out_loss_before": before, "held_out_loss": after}
    figures = {"rewards": {"mean": None}, "success": None, "malformed": None, "step": iteration}
    return {"iteration": iteration, "supervised": learned, **figures}


def test_iterations_on_demonstrations_show_the_loss() -> None:
    assert iteration_lines(_imitation(1, 1.2345, (2.0, 0.75)), []) == [
        "iteration   1   loss 1.23, held out 2.00 -> 0.75   32 demonstrations   step 1"
    ]
    assert iteration_lines(_imitation(2, 0.5), []) == ["iteration   2   loss 0.50   32 demonstrations   step 2"]
    console = Terminal(file=StringIO(), width=100, record=True)
    console.print(live_panel(_run(2, "train", 1, [_imitation(1, 1.5), _imitation(2, 0.5)]), 5.0, []))
    assert "loss     █▁  0.50" in console.export_text()


def test_a_terminal_shows_curves_events_and_why_it_waits() -> None:
    row = {"iteration": 1, "rewards": {"mean": 0.5}, "success": 0.5, "malformed": 0.0, "step": 1}
    held_out = {"iteration": 0, "split": "validation", "mode": "sampled", "success": 0.5, "scenarios": 20}
    run = _run(1, "rollout", 3, [row]) | {
        "wait_reason": "the engine does not answer\x1b]0;owned\x07",
        "evaluations": [held_out],
        "best_checkpoint": {"step": 1, "success": 0.5},
    }
    event = {
        "seq": 4,
        "type": "run.started",
        "iteration": None,
        "occurred_at": "2026-11-21T09:00:00+00:00",
        "data": {"worker": "w\x1b[31m"},
    }
    console = Terminal(file=StringIO(), width=100, record=True)
    console.print(live_panel(run, 5.0, [event]))
    text = console.export_text()
    assert "run.started" in text
    assert "w?[31m" in text
    assert "50% [30, 70]   best: step 1, 50%" in text
    assert "waiting: the engine does not answer?]0;owned" in text
    before = {**run, "progress": {**run["progress"], "iteration": None, "phase": None}}
    console.print(live_panel(before, 5.0, []))
    assert "waiting: the engine does not answer?]0;owned" in console.export_text()


def test_the_terminal_says_in_a_line_when_little_is_left_to_learn() -> None:
    text = StringIO()
    diagnosis = {"cause": "too_easy", "state": "active", "summary": "In 91% of the groups every rollout succeeded."}
    display = RunDisplay(Console(file=text, width=120))
    display.say_if_learned({"type": "run.diagnosis", "iteration": 12, "data": diagnosis})
    display.say_if_learned({"type": "run.diagnosis", "iteration": 13, "data": {**diagnosis, "state": "cleared"}})
    display.say_if_learned({"type": "run.diagnosis", "iteration": 13, "data": {**diagnosis, "cause": "too_hard"}})
    display.say_if_learned({"type": "iteration.completed", "iteration": 13, "data": {}})
    [line] = text.getvalue().splitlines()
    assert line == "iteration 12: In 91% of the groups every rollout succeeded. (end_when_learned ends a run here)"
