"""Estimates how long the current phase of a run still takes."""

from collections.abc import Callable

from learnloop_service.environment.json_type import Json

_SHORTEST_S = 2.0
"""Shortest time from which the pace of a phase is estimated, in seconds."""


class Pace:
    """The pace of a phase since it was first seen: before that, the run may have waited or been taken over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._phase: tuple[Json, Json] | None = None
        self._finished, self._at = 0, 0.0

    def left_s(self, run: Json) -> float | None:
        """Return about how many seconds the phase still takes; None while that is not known."""
        progress, now = run["progress"], self._clock()
        if run["status"] != "running" or not progress["total"]:
            return None
        phase, finished = (progress["iteration"], progress["phase"]), progress["done"]
        if phase != self._phase or finished < self._finished:
            self._phase, self._finished, self._at = phase, finished, now
        gained, took = finished - self._finished, now - self._at
        return (progress["total"] - finished) * took / gained if gained > 0 and took >= _SHORTEST_S else None
