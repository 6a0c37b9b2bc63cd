"""Follows a run until it ends: a line per iteration, and on a terminal also the curves and how far the phase is.

If it is not a terminal, a phase that takes long has one line.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from learnloop_service.app.cli.charts import bar, duration, figure, percent, sparkline
from learnloop_service.app.cli.client import Service, ServiceRefused, ServiceUnreachable
from learnloop_service.app.cli.event_lines import event_line
from learnloop_service.app.cli.pace import Pace
from learnloop_service.app.cli.run_report import expected_text, failures_text, forecast_text, losses_of, verdict_text
from learnloop_service.app.cli.terminal import plain
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.shares import wilson

ENDED = {"completed", "failed", "cancelled"}
_FIRST_POLL_S, _POLL_S = 0.05, 0.5
_RECONNECT_TIMEOUT_S = 30.0
_RESTARTING = (502, 503, 504)
"""Statuses from the service, or a proxy in front of it, while the service or its database restarts."""
_QUIET_S = 5.0
"""Silence, in seconds, after which the current phase is printed, if the console is not a terminal."""
_EVENTS = 5
"""Number of recent events shown above the curves on a terminal."""
_SHOWN_AS_FIGURES = ("phase.completed", "iteration.completed")
_PHASES = {
    "rollout": "rollouts",
    "judge": "judging",
    "train": "training",
    "reflect": "reflecting",
    "evaluate": "evaluating",
}


def follow(
    service: Service,
    run_id: str,
    show: Callable[[Json], None],
    until: Collection[str] = ENDED,
    note: Callable[[Json], None] | None = None,
    away: Callable[[str], None] | None = None,
) -> Json:
    """Show a run as it changes, and return it once its status is one of `until`.

    `note` is called with its newest events. If the service does not respond, as during a restart, `away` is called
    once, and the service gets half a minute to return. Raises the errors of Service.
    """
    noted: int | None = None

    def read() -> Json:
        nonlocal noted
        run = service.run(run_id)
        if note is not None:
            noted = _note_events(service, run, noted, note)
        return run

    return polled(read, show, until, away)


def polled(
    read: Callable[[], Json],
    show: Callable[[Json], None],
    until: Collection[str],
    away: Callable[[str], None] | None = None,
) -> Json:
    """Show what is read again and again, and return it once its status is one of `until`. For `away` see `follow`."""
    lost_at: float | None = None
    pause_s = _FIRST_POLL_S
    while True:
        try:
            document = read()
        except (ServiceUnreachable, ServiceRefused) as error:
            if isinstance(error, ServiceRefused) and error.status not in _RESTARTING:
                raise
            if lost_at is None and away is not None:
                away(str(error))
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _RECONNECT_TIMEOUT_S:
                raise
        else:
            lost_at = None
            show(document)
            if document["status"] in until:
                return document
        time.sleep(pause_s)
        pause_s = min(_POLL_S, 1.5 * pause_s)


def _note_events(service: Service, run: Json, noted: int | None, note: Callable[[Json], None]) -> int:
    """Call `note` with the events after `noted`, or initially with the last few. Returns the number of the newest."""
    newest: int = run.get("last_event", 0)  # older services have none
    since = max(0, newest - _EVENTS) if noted is None else noted
    if newest > since:
        for event in service.events(run["run_id"], since):
            note(event)
            newest = max(newest, event["seq"])
    return newest


class RunDisplay:
    """Draws a run on a console, or prints it as lines if the console is not a terminal."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._console = console
        self._clock = clock
        self._shown = -1
        self._wait_text = ""
        self._verdict = ""
        self._failing: tuple[int, str] | None = None
        self._events: deque[Json] = deque(maxlen=_EVENTS)
        self._started_at = clock()
        self._printed_at: float | None = None
        self._phase: tuple[Json, ...] = ()
        self._pace = Pace(clock)
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
        self._console.print(line, soft_wrap=True)

    def note(self, event: Json) -> None:
        """Show an event of the run, unless the figures already say it."""
        if event["type"] in _SHOWN_AS_FIGURES:
            return
        self._events.append(event)
        if not self._live:
            self._print(plain(event_line(event)))

    def say_if_learned(self, event: Json) -> None:
        """Print the event that says that little is left to learn, if it is one."""
        diagnosis = event["data"]
        if event["type"] == "run.diagnosis" and (diagnosis["cause"], diagnosis["state"]) == ("too_easy", "active"):
            self.say(f"iteration {event['iteration']}: {diagnosis['summary']} (end_when_learned ends a run here)")

    def away(self, reason: str) -> None:
        """Show that the service is not responding."""
        text = f"waiting for the service: {reason}"
        if self._live:
            self._live.update(plain(text, "yellow"), refresh=True)
        else:
            self._console.print(plain(text), soft_wrap=True)

    def show(self, run: Json) -> None:
        """Update the display."""
        if (waits := _wait_text(run)) != self._wait_text:
            self._wait_text = waits
            if waits and not self._live:
                self._console.print(waits, soft_wrap=True)
        self._show_failures(run["progress"].get("failures"))
        for row in run["iterations"]:
            if row["iteration"] > self._shown:
                self._shown = row["iteration"]
                for line in iteration_lines(row, run["evaluations"]):
                    self._print(line)
        self._show_verdict(run["verdict"])
        elapsed_s = self._clock() - self._started_at
        if self._live:
            self._live.update(live_panel(run, elapsed_s, self._events, self._pace.left_s(run)), refresh=True)
        elif (work := _work(run)) and self._is_quiet() and (phase := _phase(run)) != self._phase:
            self._phase = phase
            self._print(f"  {work}   {duration(elapsed_s)}")

    def _show_failures(self, failures: Json) -> None:
        """Print the first failure of an iteration. On a terminal it is above the status."""
        if not self._live and failures is not None:
            failing = failures["iteration"], failures["first"]
            if failing != self._failing:
                self._failing = failing
                self._console.print(plain(failures_text(failures), "red"), soft_wrap=True)

    def _show_verdict(self, verdict: Json) -> None:
        """Print whether the run learned, whenever there is a new comparison. On a terminal it is above the status."""
        if not self._live and verdict["points"] is not None and verdict["text"] != self._verdict:
            self._verdict = verdict["text"]
            self._console.print(verdict_text(verdict), soft_wrap=True)

    def _print(self, line: str | Text) -> None:
        self._printed_at = self._clock()
        self._console.print(line, overflow="ellipsis", no_wrap=True)

    def _is_quiet(self) -> bool:
        return self._printed_at is None or self._clock() - self._printed_at >= _QUIET_S


def iteration_lines(row: Json, evaluations: Sequence[Json]) -> list[str]:
    """Return lines with the figures of one iteration and of the held-out evaluation after it."""
    lines = []
    if row["iteration"] > 0:
        lines.append(f"iteration {row['iteration']:>3}   {_figures(row)}   step {row['step']}")
    for split in ("validation", "test"):
        rows = {e["mode"]: e for e in evaluations if e["iteration"] == row["iteration"] and e["split"] == split}
        if rows:
            rates = ", ".join(
                f"{percent(rows[mode]['success'])} {mode}" for mode in ("sampled", "greedy") if mode in rows
            )
            when = "before training" if row["iteration"] == 0 else f"after {row['iteration']}"
            lines.append(f"  held-out ({split}), {when}: success {rates}")
    return lines


def _figures(row: Json) -> str:
    """Return the figures of an iteration, which are others if it learned from demonstrations."""
    if learned := row.get("supervised"):
        held_out = [figure(learned[name]) for name in ("held_out_loss_before", "held_out_loss")]
        after = f", held out {' -> '.join(held_out)}" if held_out != ["-", "-"] else ""
        return f"loss {figure(learned['loss'])}{after}   {learned['demonstrations']} demonstrations"
    return (
        f"reward {figure(row['rewards']['mean']):>5}   "
        f"success {percent(row['success']):>4}   malformed {percent(row['malformed']):>4}"
    )


def live_panel(run: Json, elapsed_s: float, events: Collection[Json] = (), left_s: float | None = None) -> Group:
    """Return the curves so far, the last events, and the current phase or the reason why the run waits.

    `left_s` is about how long the phase still takes; only that of the baseline is shown.
    """
    trained = [row for row in run["iterations"] if row["iteration"] > 0]
    rewards = [row["rewards"]["mean"] for row in trained]
    successes = [row["success"] for row in trained]
    measured = [reward for reward in rewards if reward is not None]
    lines = [_event_text(event) for event in events]
    if losses := losses_of(trained):
        curve = sparkline(losses, low=min(losses), high=max(losses))
        lines.append(Text.assemble("loss     ", (curve, "magenta"), f"  {figure(losses[-1])}"))
    if measured:
        curve = sparkline(rewards, low=min(measured), high=max(measured))
        lines.append(Text.assemble("reward   ", (curve, "cyan"), f"  {figure(rewards[-1])}"))
        curve = sparkline(successes, low=0.0, high=1.0)
        lines.append(Text.assemble("success  ", (curve, "green"), f"  {percent(successes[-1])}"))
    if held_out := _validations(run):
        curve = sparkline([row["success"] for row in held_out], low=0.0, high=1.0)
        low, high = wilson(held_out[-1]["success"], held_out[-1]["scenarios"])
        newest = f"  {percent(held_out[-1]['success'])} [{100 * low:.0f}, {100 * high:.0f}]"
        best = run["best_checkpoint"]
        best_text = f"   best: step {best['step']}, {percent(best['success'])}" if best else ""
        lines.append(Text.assemble("held-out ", (curve, "yellow"), newest, best_text))
        lines.append(verdict_text(run["verdict"]))
    if forecast := forecast_text(run):
        lines.append(plain(forecast, "dim"))
    if failures := run["progress"].get("failures"):
        lines.append(plain(failures_text(failures), "red"))
    remaining = f", about {duration(left_s)} left" if left_s is not None and run["progress"]["iteration"] == 0 else ""
    status = f"{_status_text(run)}{remaining}   {duration(elapsed_s)}"
    lines.append(Text(status, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _validations(run: Json) -> list[Json]:
    """Return the sampled validation figures, in order."""
    return [row for row in run["evaluations"] if (row["split"], row["mode"]) == ("validation", "sampled")]


def _event_text(event: Json) -> Text:
    text = plain(event_line(event), "dim")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _wait_text(run: Json) -> str:
    """Return that a run is queued or paused, and why, otherwise an empty string."""
    if run["status"] not in ("queued", "paused"):
        return ""
    reason = run["queue"]["reason"] if run["queue"] else run["wait_reason"]
    return f"run {run['run_id']} is {run['status']}" + (f": {reason}" if reason else "")


def _status_text(run: Json) -> str:
    return _work(run, with_bar=True) or _wait_text(run) or f"run {run['run_id']} is {run['status']}"


def _phase(run: Json) -> tuple[Json, ...]:
    """Return what tells a phase of a run from all others."""
    return run["progress"]["iteration"], run["progress"]["phase"], run["wait_reason"]


def _work(run: Json, *, with_bar: bool = False) -> str:
    """Return what a running run is doing, or an empty string if it has not begun."""
    progress = run["progress"]
    if run["status"] != "running":
        return ""
    if run["wait_reason"]:
        return f"waiting: {run['wait_reason']}"
    if progress["iteration"] is None:
        return ""
    iteration = (
        f"iteration {progress['iteration']}/{progress['iterations_total']}" if progress["iteration"] else "baseline"
    )
    phase = _PHASES.get(progress["phase"], progress["phase"])
    if not progress["total"]:
        return f"{iteration}   {phase}"
    drawn = f"{bar(progress['done'], progress['total'])} " if with_bar else ""
    share = f" ({percent(progress['done'] / progress['total'])})" if with_bar else ""
    failures = progress.get("failures") if phase == _PHASES["rollout"] or not progress["iteration"] else None
    failed = f", {failures['failed']} failed" if failures else ""
    return f"{iteration}   {phase:<9} {drawn}{progress['done']}/{progress['total']}{share}{failed}"


def page_of(url: str, run_id: str) -> str:
    """Return the address of a run's page in the dashboard of the service at a URL."""
    return f"{url}/ui/runs/{run_id}"


def run_to_end(service: Service, request: Json, display: RunDisplay) -> Json:
    """Start a learn-loop and follow it to its end. On Ctrl-C the run is cancelled, and has ended before this raises."""
    accepted = service.start_run(request)
    run_id = accepted["run_id"]
    display.say(f"watch it in a browser: {page_of(service.url, run_id)}")
    if "expected" in accepted:  # older services do not say it
        display.say(expected_text(accepted["expected"]))
    try:
        return follow(service, run_id, display.show, note=display.say_if_learned)
    except KeyboardInterrupt:
        service.cancel(run_id)
        run = follow(service, run_id, lambda _: None)
        display.say(f"run {run_id} is {run['status']}")
        raise
