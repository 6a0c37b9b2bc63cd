"""A plot of a run: the rewards of training rollouts and the success of held-out rollouts by iteration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from app.plots import svg
from environment.json_type import Json
from training.statistics.shares import wilson

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 860, 200, 64, 24, 84, 64
_TICKS = 4
_MOST_LABELS = 12


@dataclass(frozen=True, slots=True)
class _Axes:
    """The position of a panel and the ranges of its axes."""

    top: float
    iterations: int
    low: float
    high: float

    def at(self, iteration: float, value: float) -> svg.Point:
        x = _LEFT + iteration / max(self.iterations, 1) * (_WIDTH - _LEFT - _RIGHT)
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return x, self.top + (1 - share) * _PANEL


def run_svg(run: Mapping[str, Json]) -> str:
    """Return the plot of a run as returned by `GET /runs/{run_id}`. Without iterations, the panels are empty."""
    rewards = [row for row in run["iterations"] if row["rewards"]["mean"] is not None]
    iterations = max(run["progress"]["iterations_total"], 1)
    low = min((row["rewards"]["min"] for row in rewards), default=0.0)
    high = max((row["rewards"]["max"] for row in rewards), default=1.0)
    upper = _Axes(_TOP, iterations, low, high if high > low else low + 1.0)
    lower = _Axes(_TOP + _PANEL + _GAP, iterations, 0.0, 1.0)
    model = run["model"]
    height = int(lower.top + _PANEL + 48)
    return svg.document(
        _WIDTH,
        height,
        f"Run {run['run_id']}: reward and held-out success by iteration",
        [
            svg.heading(f"{run['environment']}: {model['project']}/{model['name']}"),
            svg.label(16, 44, f"run {run['run_id']}, {run['status']}, from {model['base_model']}", fill=svg.FAINT),
            *_grid(upper, "reward of training rollouts: mean, and from the lowest to the highest", "{:.2f}"),
            *_rewards(upper, rewards),
            *_grid(lower, "held-out success, 95% intervals (Wilson)", "{:.0%}"),
            *_held_out(lower, run["evaluations"]),
            svg.label(_WIDTH - _RIGHT, height - 10, "iteration", anchor="end", fill=svg.FAINT),
        ],
    )


def _grid(axes: _Axes, title: str, form: str) -> Iterator[str]:
    yield svg.label(_LEFT, axes.top - 10, title)
    for tick in range(_TICKS + 1):
        value = axes.low + tick / _TICKS * (axes.high - axes.low)
        (left, y), (right, _) = axes.at(0, value), axes.at(axes.iterations, value)
        yield svg.line((left, y), (right, y), svg.GRID)
        yield svg.label(_LEFT - 8, y + 4, form.format(value), anchor="end", fill=svg.FAINT)
    for iteration in range(0, axes.iterations + 1, _step(axes.iterations)):
        x, y = axes.at(iteration, axes.low)
        yield svg.label(x, y + 18, str(iteration), anchor="middle", fill=svg.FAINT)


def _step(iterations: int) -> int:
    """Return the distance between labels: 1, 2 or 5 times a power of ten."""
    steps = (factor * int(10.0**zeros) for zeros in count() for factor in (1, 2, 5))
    return next(step for step in steps if iterations / step <= _MOST_LABELS)


def _rewards(axes: _Axes, rows: Sequence[Json]) -> Iterator[str]:
    if not rows:
        yield _nothing(axes, "no iteration has a reward yet")
        return
    figures = [(row["iteration"], row["rewards"]) for row in rows]
    highest = [axes.at(iteration, rewards["max"]) for iteration, rewards in figures]
    lowest = [axes.at(iteration, rewards["min"]) for iteration, rewards in figures]
    yield svg.area([*highest, *reversed(lowest)], svg.PALE_BLUE)
    yield svg.curve([axes.at(iteration, rewards["mean"]) for iteration, rewards in figures], svg.BLUE)


def _held_out(axes: _Axes, rows: Sequence[Json]) -> Iterator[str]:
    if not rows:
        yield _nothing(axes, "nothing has been evaluated yet")
        return
    series = (
        ("validation", "sampled", svg.GREEN, 0.0),
        ("validation", "greedy", svg.FAINT, 4.0),
        ("test", "sampled", svg.ORANGE, -4.0),
    )
    x = float(_WIDTH - _RIGHT)
    for split, mode, color, aside in reversed(series):
        mine = [row for row in rows if (row["split"], row["mode"]) == (split, mode)]
        if not mine:
            continue
        name = f"{split}, {mode}"
        yield svg.label(x, axes.top - 10, name, anchor="end", fill=color)
        x -= 7.0 * len(name) + 16
        places = [(axes.at(row["iteration"], row["success"]), row) for row in mine]
        if split == "validation":  # the test split is evaluated only twice
            yield svg.curve([(across + aside, down) for (across, down), _ in places], color)
        for (across, down), row in places:
            low, high = (axes.at(row["iteration"], edge)[1] for edge in wilson(row["success"], row["scenarios"]))
            yield svg.line((across + aside, low), (across + aside, high), color)
            yield svg.dot((across + aside, down), color, 3)


def _nothing(axes: _Axes, words: str) -> str:
    x, y = axes.at(axes.iterations / 2, (axes.low + axes.high) / 2)
    return svg.label(x, y, words, anchor="middle", fill=svg.FAINT)
