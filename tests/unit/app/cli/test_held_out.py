"""The table of held-out figures in the terminal."""

import pytest
from rich.console import Console

from learnloop_service.app.cli.held_out import held_out_table


@pytest.mark.parametrize(("count", "heading"), [(1, "1 held-out task "), (2, "2 held-out tasks ")])
def test_the_heading_counts_the_tasks(count: int, heading: str) -> None:
    figures = {"success": 0.5, "mean_reward": 0.1, "malformed": 0.0, "turns": 3.0, "scenarios": count}
    rows = [
        {"split": split, "mode": mode, "iteration": iteration, "step": iteration} | figures
        for split in ("validation", "test")
        for mode in ("sampled", "greedy")
        for iteration in (0, 2)
    ]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(held_out_table(rows))
    assert f"{heading}(validation)" in capture.get()
    assert f"{heading}(test), best checkpoint" in capture.get()


def test_all_tasks_have_an_interval_where_the_baseline_had_only_some() -> None:
    same = {"split": "test", "mean_reward": 0.1, "malformed": 0.0, "turns": 3.0, "difference": None}
    rows = [
        same | {"mode": mode, "iteration": iteration, "step": iteration, "scenarios": count, "success": success}
        for iteration, count, success in ((0, 64, 0.0), (24, 152, 146 / 152))
        for mode in ("sampled", "greedy")
    ]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(held_out_table(rows))
    assert ["on", "all", "152,", "greedy", "-", "96%", "[92,", "98]", "-"] in map(str.split, capture.get().splitlines())
