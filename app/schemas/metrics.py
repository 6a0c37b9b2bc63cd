"""Bodies of the responses about a run's metrics and its log."""

from datetime import datetime
from enum import StrEnum

from learnloop_service.app.schemas.base import ResponseModel


class MetricSeries(ResponseModel):
    """One metric of a run."""

    name: str
    """Name of the metric, one of `names`."""
    values: list[float | None]
    """Its value in each of the iterations; null where it has none."""


class RunMetrics(ResponseModel):
    """Metrics of a run over its iterations."""

    run_id: str
    """Id of the run."""
    every: int
    """Number of iterations that share a point, which is their mean: 1, or more if there are more than 1,000."""
    iterations: list[int]
    """The iteration of each point, from 0, the baseline; of several the last one."""
    names: list[str]
    """Names of all metrics that the run has."""
    metrics: list[MetricSeries]
    """The metrics that the request named, in its order."""


class LogLevel(StrEnum):
    """How bad it is what a line of a log says."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class LogLine(ResponseModel):
    """One line of a run's log."""

    level: LogLevel
    """`error`: something failed; `warning`: something may need attention; `info`: anything else."""
    at: datetime
    """When it happened; of several failures the last one, and of a judge's when their iteration was saved."""
    type: str
    """What happened: the type of an event (docs/events.md), `rollout.failed` or `judge.failed`."""
    count: int
    """Number of equal failures in the iteration that the line stands for; 1 for an event."""
    iteration: int | None
    """Iteration that it belongs to; 0 is the baseline. Null if it belongs to none."""
    text: str
    """What happened in detail, cut after 1,000 characters."""
    seq: int | None
    """Number of the event; null if the line is not an event."""
    trajectory_id: str | None
    """Id of a rollout that failed so; null in other lines, and if the records were deleted."""


class RunLog(ResponseModel):
    """A page of a run's log."""

    counts: dict[LogLevel, int]
    """Number of all lines by level."""
    items: list[LogLine]
    """Lines of the page."""
    next_cursor: str | None
    """`cursor` of the next page; null if there is none."""
