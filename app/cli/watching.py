"""Following a run until it ends: a line per iteration, and on a terminal also the curves and the current phase."""

import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from app.cli.charts import bar, duration, figure, percent, sparkline
from app.cli.client import Service, ServiceUnreachable

Json = Any
ENDED = {"completed", "failed", "cancelled"}
_FIRST_POLL_S, _POLL_S = 0.05, 0.5
_PATIENCE_S = 30.0
_QUIET_S = 5.0
"""Where the console is not a terminal, a run that works prints something at least this often."""
_PHASES = {
    "rollout": "rollouts",
    "judge": "judging",
    "train": "training",
    "reflect": "reflecting",
    "evaluate": "evaluating",
}


def follow(service: Service, run_id: str, show: Callable[[Json], None], until: Collection[str] = ENDED) -> Json:
    """Show the run as it changes; returns it once its status is one of `until`.

    Waits for a service that is unreachable for less than half a minute (a restart). Raises what Service raises.
    """
    lost_at: float | None = None
    pause_s = _FIRST_POLL_S
    while True:
        try:
            run = service.run(run_id)
        except ServiceUnreachable:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _PATIENCE_S:
                raise
        else:
            lost_at = None
            show(run)
            if run["status"] in until:
                return run
        time.sleep(pause_s)
        pause_s = min(_POLL_S, 1.5 * pause_s)


class RunDisplay:
    """Draws a run on a console; only as lines if the console is not a terminal."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._console = console
        self._clock = clock
        self._shown = -1
        self._waits = ""
        self._started_at = clock()
        self._printed_at: float | None = None
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "RunDisplay":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line above the curves."""
        self._console.print(line)

    def show(self, run: Json) -> None:
        """Update the display."""
        if (waits := _waits(run)) != self._waits:
            self._waits = waits
            if waits and not self._live:
                self._console.print(waits, soft_wrap=True)
        for row in run["iterations"]:
            if row["iteration"] > self._shown:
                self._shown = row["iteration"]
                for line in iteration_lines(row, run["evaluations"]):
                    self._print(line)
        elapsed_s = self._clock() - self._started_at
        if self._live:
            self._live.update(live_panel(run, elapsed_s), refresh=True)
        elif (work := _work(run)) and self._is_quiet():
            self._print(f"  {work}   {duration(elapsed_s)}")

    def _print(self, line: str) -> None:
        self._printed_at = self._clock()
        self._console.print(line, overflow="ellipsis", no_wrap=True)

    def _is_quiet(self) -> bool:
        return self._printed_at is None or self._clock() - self._printed_at >= _QUIET_S


def iteration_lines(row: Json, evaluations: Sequence[Json]) -> list[str]:
    """The figures of one iteration, and of the held-out evaluation after it."""
    lines = []
    if row["iteration"] > 0:
        lines.append(
            f"iteration {row['iteration']:>3}   reward {figure(row['rewards']['mean']):>5}   "
            f"success {percent(row['success']):>4}   malformed {percent(row['malformed']):>4}   step {row['step']}"
        )
    for split in ("validation", "test"):
        rows = {e["mode"]: e for e in evaluations if e["iteration"] == row["iteration"] and e["split"] == split}
        if rows:
            rates = ", ".join(
                f"{percent(rows[mode]['success'])} {mode}" for mode in ("sampled", "greedy") if mode in rows
            )
            when = "before training" if row["iteration"] == 0 else f"after {row['iteration']}"
            lines.append(f"  held-out ({split}), {when}: success {rates}")
    return lines


def live_panel(run: Json, elapsed_s: float) -> Group:
    """The curves so far, and the current phase."""
    trained = [row for row in run["iterations"] if row["iteration"] > 0]
    rewards = [row["rewards"]["mean"] for row in trained]
    successes = [row["success"] for row in trained]
    known = [reward for reward in rewards if reward is not None]
    lines = []
    if known:
        curve = sparkline(rewards, low=min(known), high=max(known))
        lines.append(Text.assemble("reward   ", (curve, "cyan"), f"  {figure(rewards[-1])}"))
        curve = sparkline(successes, low=0.0, high=1.0)
        lines.append(Text.assemble("success  ", (curve, "green"), f"  {percent(successes[-1])}"))
    lines.append(Text(f"{_now(run)}   {duration(elapsed_s)}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _waits(run: Json) -> str:
    """That a run is queued or paused, and why; otherwise an empty string."""
    if run["status"] not in ("queued", "paused"):
        return ""
    reason = run["queue"]["reason"] if run["queue"] else run["wait_reason"]
    return f"run {run['run_id']} is {run['status']}" + (f": {reason}" if reason else "")


def _now(run: Json) -> str:
    return _work(run, with_bar=True) or _waits(run) or f"run {run['run_id']} is {run['status']}"


def _work(run: Json, *, with_bar: bool = False) -> str:
    """What a running run is doing; an empty string if nothing yet."""
    progress = run["progress"]
    if run["status"] != "running" or progress["iteration"] is None:
        return ""
    if run["wait_reason"]:
        return f"waiting: {run['wait_reason']}"
    place = f"iteration {progress['iteration']}/{progress['iterations_total']}" if progress["iteration"] else "baseline"
    phase = _PHASES.get(progress["phase"], progress["phase"])
    if not progress["total"]:
        return f"{place}   {phase}"
    drawn = f"{bar(progress['done'], progress['total'])} " if with_bar else ""
    return f"{place}   {phase:<9} {drawn}{progress['done']}/{progress['total']}"


def run_to_end(service: Service, request: Json, display: RunDisplay) -> Json:
    """Start a learn-loop and follow it. On Ctrl-C the run is cancelled and has ended before this raises."""
    run_id = service.start_run(request)["run_id"]
    try:
        return follow(service, run_id, display.show)
    except KeyboardInterrupt:
        service.cancel(run_id)
        run = follow(service, run_id, lambda _: None)
        display.say(f"run {run_id} is {run['status']}")
        raise


class Waiting:
    """Prints each thing that is being waited for once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: str | None = None

    def show(self, what: str) -> None:
        """Print this, unless it was the last thing printed."""
        if what != self._said:
            self._said = what
            self._console.print(f"waiting for the {what}", style="dim")
