"""Held-out figures before and after training."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from learnloop_service.app.cli.charts import figure, percent
from learnloop_service.app.statistics.verdict import headline, on_same_scenarios
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed
from learnloop_service.training.statistics.shares import wilson

Pair = dict[str, float | None]
"""Values `before` and `after` training, None without an evaluation."""


def held_out_figures(evaluations: Sequence[Json], split: str) -> Json:
    """Return figures of iteration 0 and of the last evaluation: success by mode, and the others of sampled rollouts.

    Success is compared on the same scenarios. If iteration 0 had fewer, `on_all` has the last one's on all. The others
    are means over the scenarios that each evaluation has.
    """
    rows = sorted((row for row in evaluations if row["split"] == split), key=lambda row: row["iteration"])

    def pair(name: str, mode: str = "sampled") -> Pair:
        before = [row for row in rows if row["mode"] == mode and row["iteration"] == 0]
        after = [row for row in rows if row["mode"] == mode and row["iteration"] > 0]
        if before and after and name == "success":
            after = [on_same_scenarios(before[0], after[-1])]
        return {"before": before[0][name] if before else None, "after": after[-1][name] if after else None}

    counts = [row["scenarios"] for row in rows]
    held_out: dict[str, Json] = {"split": split, "scenarios": max(counts, default=0)}
    if counts and counts[0] < counts[-1]:
        held_out["scenarios"] = counts[0]
        held_out["on_all"] = {"scenarios": counts[-1]} | {row["mode"]: row["success"] for row in rows[-2:]}
    held_out |= {"sampled": pair("success"), "greedy": pair("success", "greedy")}
    return {
        "held_out": held_out,
        "mean_reward": pair("mean_reward"),
        "malformed": pair("malformed"),
        "turns": pair("turns"),
    }


def held_out_table(evaluations: Sequence[Json]) -> Table:
    """Return the figures before training and now as a table. Changes of shares are in percentage points.

    The headline figure comes first. The test split, which is evaluated at the start and on the best checkpoint at the
    end, has rows of its own.
    """
    split = headline(evaluations)[0]["split"]
    figures = held_out_figures(evaluations, split)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{_tasks(figures['held_out'])} ({split})", no_wrap=True)
    table.add_column("before", justify="right", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True, style="bold")
    table.add_column("change", justify="right", no_wrap=True)
    _add_share(table, "success, sampled", figures["held_out"]["sampled"])
    _add_share(table, "success, greedy", figures["held_out"]["greedy"])
    if on_all := figures["held_out"].get("on_all"):
        _add_all(table, on_all)
    _add_number(table, "mean reward", figures["mean_reward"])
    _add_share(table, "malformed calls", figures["malformed"])
    _add_number(table, "turns per rollout", figures["turns"])
    tested = held_out_figures(evaluations, "test")["held_out"]
    if split != "test" and tested["sampled"]["after"] is not None:
        table.add_section()
        table.add_row(Text(f"{_tasks(tested)} (test), best checkpoint", style="bold"))
        _add_share(table, "success, sampled", tested["sampled"])
        _add_share(table, "success, greedy", tested["greedy"])
        if on_all := tested.get("on_all"):
            _add_all(table, on_all)
    return table


def _tasks(figures: Json) -> str:
    return counted(figures["scenarios"], "held-out task")


def _add_all(table: Table, on_all: Json) -> None:
    """Add the success with its interval on all scenarios after training, of which the baseline had only some."""
    count = on_all["scenarios"]
    for mode in ("sampled", "greedy"):
        low, high = wilson(on_all[mode], count)
        success = f"{percent(on_all[mode])} [{100 * low:.0f}, {100 * high:.0f}]"
        table.add_row(f"on all {count}, {mode}", "-", success, "-")


def _add_share(table: Table, label: str, pair: Pair) -> None:
    before, after = percent(pair["before"]), percent(pair["after"])
    table.add_row(label, before, after, _change(before, after, 0))


def _add_number(table: Table, label: str, pair: Pair) -> None:
    before, after = figure(pair["before"]), figure(pair["after"])
    table.add_row(label, before, after, _change(before, after, 2))


def _change(before: str, after: str, digits: int) -> str:
    """Return the difference of two figures as displayed, so that each row is consistent."""
    if "-" in (before, after):
        return "-"
    return signed(float(after.rstrip("%")) - float(before.rstrip("%")), digits)
