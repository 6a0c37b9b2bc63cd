"""Prints a run as text and a table."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from learnloop_service.app.cli.charts import duration, figure, percent, sparkline
from learnloop_service.app.cli.held_out import held_out_table
from learnloop_service.app.cli.terminal import plain, results, starter_of
from learnloop_service.app.reports.format import dollars
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed

_STYLES = {
    "learned": "green",
    "got_worse": "bold red",
    "no_change_shown": "yellow",
    "demonstrations_learned": "green",
    "demonstrations_not_learned": "yellow",
}


def print_run(run: Json) -> None:
    """Print a run's status, whether it learned, its learning curve and its held-out figures."""
    progress = run["progress"]
    results.print(f"run {run['run_id']} is {run['status']}{starter_of(run)}", style="bold", soft_wrap=True)
    if run["status"] == "queued" and run.get("shortage"):
        results.print(f"  {run['wait_reason']}")
    results.print(verdict_text(run["verdict"]))
    if early := run.get("ended_early"):
        results.print(f"  {early}")
    if run["error"]:
        results.print(f"  {run['error']}", style="red")
    if failures := progress.get("failures"):
        results.print(plain(f"  {failures_text(failures)}", "red"))
    for warning in run["warnings"]:
        results.print(f"  warning: {warning}", style="yellow", markup=False)
    model = run["model"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    if run.get("name"):
        facts.add_row("name", plain(run["name"]))
    facts.add_row("environment", f"{run['environment']}, judged by {run['judge']}")
    facts.add_row("model", f"{model['project']}/{model['name']}, from {model['base_model']}")
    facts.add_row("iterations", f"{progress['iterations_done']} of {progress['iterations_total']}{_since(run)}")
    facts.add_row("rollouts", f"{run['rollouts']:,}, {run['tokens']['completion']:,} tokens sampled")
    if cost := cost_text(run):
        facts.add_row("cost", cost)
    if text := forecast_text(run):
        facts.add_row("forecast", text)
    if run["best_checkpoint"]:
        best = run["best_checkpoint"]
        low_high = best.get("interval")
        interval = f" [{100 * low_high[0]:.0f}, {100 * low_high[1]:.0f}]" if low_high else ""
        facts.add_row(
            "best checkpoint", f"step {best['step']} (validation success {percent(best['success'])}{interval})"
        )
    results.print(facts)
    print_defaults(run.get("defaults", {}))
    _print_curve([row for row in run["iterations"] if row["iteration"] > 0])
    if run["evaluations"]:
        results.print()
        results.print(held_out_table(run["evaluations"]))


def cost_text(run: Json) -> str:
    """Return what a run cost, what it gained for that, and the parts of the sum; empty if no price is known."""
    cost = run.get("cost", {})
    if cost.get("total_usd") is None:  # older services have none
        return ""
    parts = [f"{dollars(cost['usd'])} for calls"] if cost["usd"] is not None else []
    if cost["machine_usd"] is not None:
        hour = dollars(cost["machine_price_per_hour"])
        parts.append(f"{dollars(cost['machine_usd'])} for {duration(cost['seconds'])} of the machine at {hour} an hour")
    points = run["verdict"]["points"]
    gained = "" if points is None else f"{signed(points)} points for "
    return f"{gained}{dollars(cost['total_usd'])}: {', '.join(parts)}"


def forecast_text(run: Json) -> str:
    """Return the forecast of an unfinished run; empty if there is none."""
    forecast = run.get("forecast")  # older services have none
    return " ".join(forecast["text"]) if forecast and run["status"] in ("queued", "running", "paused") else ""


def failures_text(failures: Json) -> str:
    """Return how many rollouts of an iteration failed, and why the first one did."""
    where = f" in iteration {failures['iteration']}" if failures["iteration"] else ""
    return f"{failures['failed']} of {counted(failures['finished'], 'rollout')} failed{where}: {failures['first']}"


def print_defaults(defaults: Mapping[str, Json]) -> None:
    """Print the settings that were not given, those with the same reason in one row."""
    if not defaults:
        return
    settings: dict[str, list[str]] = {}
    for path, default in defaults.items():
        settings.setdefault(default["reason"], []).append(f"{path} {_value(default['value'])}")
    table = Table(title="not given, so chosen for the base model", title_justify="left", box=None, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(style="dim", overflow="fold")
    for reason, values in settings.items():
        table.add_row(plain(", ".join(values)), plain(reason))
    results.print(table)


def _value(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def expected_text(expected: Json) -> str:
    """Return how many rollouts a run makes and how long it takes, as the reply that accepted it says."""
    rollouts, seconds = expected["rollouts"], expected["seconds"]
    most, replacing = "", ""
    if rollouts.get("replacements"):  # a base that is not the tiny one, whose baseline can end early too
        most, replacing = "up to ", f" and up to {rollouts['replacements']:,} in place of groups that teach nothing"
    before, after = f"{most}{rollouts['baseline']:,} before training", f"{rollouts['evaluations']:,} afterwards"
    took = f"about {duration(seconds)}, as the last run like it" if seconds else "the first iteration shows the time"
    disk = expected.get("disk_bytes")
    space = f"; about {disk / 1e9:,.1f} GB of disk" if disk else ""
    return f"rollouts: {before}, {rollouts['training']:,} in training{replacing}, {after}; {took}{space}"


def verdict_text(verdict: Json) -> Text:
    """Return the sentence that says whether a run learned."""
    return plain(verdict["text"], _STYLES.get(verdict["state"], ""))


def run_seconds(run: Json) -> float | None:
    """Return the seconds from start to end, or None before the end."""
    if not run["started_at"] or not run["finished_at"]:
        return None
    return (datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(run["started_at"])).total_seconds()


def losses_of(rows: Sequence[Json]) -> list[float]:
    """Return the losses of iterations on demonstrations: on those that are held out, where there are any."""
    learned = [row["supervised"] for row in rows if row.get("supervised")]
    losses = [figures["loss"] if figures["held_out_loss"] is None else figures["held_out_loss"] for figures in learned]
    return [loss for loss in losses if loss is not None]


def _print_curve(rows: Sequence[Json]) -> None:
    if losses := losses_of(rows):
        _print_sparkline("loss", losses, losses)
    rewards = [row["rewards"]["mean"] for row in rows]
    measured = [reward for reward in rewards if reward is not None]
    if measured:
        _print_sparkline("reward", rewards, measured)


def _print_sparkline(name: str, values: Sequence[float | None], measured: Sequence[float]) -> None:
    ends = f"{figure(measured[0])} -> {figure(measured[-1])}"
    results.print(f"{name:<17}{sparkline(values, low=min(measured), high=max(measured))}  {ends}")


def _since(run: Json) -> str:
    seconds = run_seconds(run)
    return f" in {duration(seconds)}" if seconds is not None else ""
