"""Before and after: the held-out figures of a run's base and of what it trained."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from app.cli.charts import figure, percent

Json = Any
Pair = dict[str, float | None]
"""`before` and `after`; None where it was not examined."""


def held_out_figures(evaluations: Sequence[Json], split: str) -> Json:
    """Success by mode, and the other figures of the sampled tries, of iteration 0 and of the last evaluation."""
    rows = sorted((row for row in evaluations if row["split"] == split), key=lambda row: row["iteration"])

    def pair(name: str, mode: str = "sampled") -> Pair:
        before = [row[name] for row in rows if row["mode"] == mode and row["iteration"] == 0]
        after = [row[name] for row in rows if row["mode"] == mode and row["iteration"] > 0]
        return {"before": before[0] if before else None, "after": after[-1] if after else None}

    return {
        "held_out": {
            "split": split,
            "scenarios": max((row["scenarios"] for row in rows), default=0),
            "sampled": pair("success"),
            "greedy": pair("success", "greedy"),
        },
        "mean_reward": pair("mean_reward"),
        "malformed": pair("malformed"),
        "turns": pair("turns"),
    }


def held_out_table(figures: Json) -> Table:
    """The figures of `held_out_figures` as a table; changes of shares are in percentage points."""
    held_out = figures["held_out"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{held_out['scenarios']} held-out tasks ({held_out['split']})", no_wrap=True)
    table.add_column("before", justify="right", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True, style="bold")
    table.add_column("change", justify="right", no_wrap=True)
    _add_share(table, "success, sampled", held_out["sampled"])
    _add_share(table, "success, greedy", held_out["greedy"])
    _add_number(table, "mean reward", figures["mean_reward"])
    _add_share(table, "malformed calls", figures["malformed"])
    _add_number(table, "turns a try", figures["turns"])
    return table


def _add_share(table: Table, label: str, pair: Pair) -> None:
    change = _change(pair)
    table.add_row(
        label, percent(pair["before"]), percent(pair["after"]), "-" if change is None else f"{100 * change:+.0f}"
    )


def _add_number(table: Table, label: str, pair: Pair) -> None:
    change = _change(pair)
    table.add_row(label, figure(pair["before"]), figure(pair["after"]), "-" if change is None else f"{change:+.2f}")


def _change(pair: Pair) -> float | None:
    before, after = pair["before"], pair["after"]
    return None if before is None or after is None else after - before
