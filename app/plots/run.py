"""A plot of a run: the rewards of training rollouts and the success of held-out rollouts by iteration."""

from collections.abc import Iterator, Mapping, Sequence

from learnloop_service.app.plots import svg
from learnloop_service.app.plots.charts import LEGEND, Frame, Palette, grid, held_out_chart, iteration_labels, nothing
from learnloop_service.environment.json_type import Json

_COLORS = Palette(svg.INK, svg.FAINT, svg.GRID, svg.BLUE, svg.GREEN, svg.ORANGE)
_FRAME = Frame(860, 270, left=64, top=30, bottom=40, text=13)
_TOP = 56


def run_svg(run: Mapping[str, Json]) -> str:
    """Return the plot of a run as returned by `GET /runs/{run_id}`. Without iterations, the panels are empty."""
    model, total = run["model"], run["progress"]["iterations_total"]
    rewards = [(row["iteration"], row["rewards"]) for row in run["iterations"] if row["rewards"]["mean"] is not None]
    return svg.document(
        _FRAME.width,
        _TOP + 2 * _FRAME.height,
        f"Run {run['run_id']}: reward and held-out success by iteration",
        [
            svg.heading(f"{run['environment']}: {run.get('name') or '/'.join((model['project'], model['name']))}"),
            svg.label(16, 44, f"run {run['run_id']}, {run['status']}, from {model['base_model']}", fill=svg.FAINT),
            svg.moved(0, _TOP, _rewards(rewards, max(total, 1))),
            svg.moved(0, _TOP + _FRAME.height, _held_out(run["evaluations"], total)),
        ],
    )


def _rewards(rows: Sequence[tuple[int, Json]], last: int) -> Iterator[str]:
    yield svg.label(_FRAME.left, 16, "reward of training rollouts: mean, and from the lowest to the highest")
    if not rows:
        yield nothing(_FRAME, _COLORS, "No training rollout has a reward yet")
        return
    low, high = min(rewards["min"] for _, rewards in rows), max(rewards["max"] for _, rewards in rows)
    span = (high - low) or 1.0

    def points(name: str) -> list[svg.Point]:
        return [(_FRAME.x(number, last), _FRAME.y((rewards[name] - low) / span)) for number, rewards in rows]

    yield from grid(_FRAME, _COLORS, lambda share: f"{low + share * span:.2f}")
    yield from iteration_labels(_FRAME, _COLORS, ((_FRAME.x(number, last), number) for number, _ in rows))
    yield svg.area([*points("max"), *reversed(points("min"))], svg.PALE_BLUE)
    yield svg.curve(points("mean"), _COLORS.series)


def _held_out(rows: Sequence[Json], total: int) -> Iterator[str]:
    yield svg.label(_FRAME.left, 16, f"held-out success; {LEGEND}")
    yield from held_out_chart(rows, total, _COLORS, _FRAME)
