"""Restart times and journal costs, read from a service's log."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

_TRAINING, _TOKEN = "training begins", "first token sampled"
_TIMELINE = ("engine starts", "engine is up", "service is up", "run claimed", "run continues", _TRAINING, _TOKEN)
"""Log events from the start of a process to its first newly sampled token."""


class Restarts:
    """Reads a log that grows with each restart."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._after_s: dict[str, list[float]] = defaultdict(list)

    def read(self, started: float, *, count: bool) -> None:
        """Read the new lines; if `count`, note how long after `started` (Unix time) each event was first logged."""
        with self._log.open("rb") as file:
            file.seek(self._offset)
            lines = file.readlines()
            self._offset = file.tell()
        first: dict[str, float] = {}
        for entry in _entries(lines):
            at = datetime.fromisoformat(entry["timestamp"]).timestamp()
            first.setdefault(str(entry["event"]), at - started)
        for event in _TIMELINE if count else ():
            if event in first:
                trained = event == _TOKEN and first.get(_TRAINING, math.inf) < first[_TOKEN]
                self._after_s[f"{event}, after a training" if trained else event].append(first[event])

    def figures(self) -> dict[str, dict[str, float]]:
        """Return statistics of the seconds after start, over all counted starts."""
        return {event: spread(times) for event, times in self._after_s.items()}


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return count, median, 95th percentile and maximum."""
    ordered = sorted(times)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    figures = {"median": statistics.median(ordered), "p95": p95, "max": ordered[-1]}
    return {"count": len(ordered)} | {name: round(value, 2) for name, value in figures.items()}


def journal_percent(log: Path) -> dict[str, float]:
    """Return the time spent waiting for the journal and writing it in the background, in percent of iteration time."""
    saved = [
        iteration for iteration in _entries(log.read_bytes().splitlines()) if iteration["event"] == "iteration saved"
    ]

    def total_s(name: str) -> float:
        return sum(float(iteration[name]) for iteration in saved)

    whole_s = total_s("seconds")
    return {name: round(100 * total_s(name) / whole_s, 2) for name in ("journal_s", "journal_beside_s")}


def _entries(lines: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        with suppress(ValueError):  # a line cut off by a kill
            yield json.loads(line)
