"""The charts of a report, as SVG. They are drawn from the report's data only."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from learnloop_service.app.plots import svg
from learnloop_service.app.plots.charts import Frame, Palette, iteration_labels, nothing
from learnloop_service.app.reports.rollouts import batches_of
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import signed

PHASES = ("rollout", "judge", "train", "evaluate", "reflect", "other")
_BINS = 12
_MAX_COLUMNS = 60
_SHADES = 6

PAGE = Palette(
    "var(--ink)",
    "var(--muted)",
    "var(--line)",
    "var(--series)",
    "var(--second)",
    "var(--third)",
    [f"var(--phase-{name})" for name in PHASES],
)


def rewards_chart(report: Json, palette: Palette, frame: Frame) -> list[str]:
    """Draw the rewards of all listed training rollouts: a column for each iteration, darker where there are more, with
    the mean as a line."""
    rewards = listed_rewards(report)
    if not rewards:
        return [nothing(frame, palette, "No training rollout has a reward yet")]
    everything = [reward for some in rewards.values() for reward in some]
    low, high = min(everything), max(everything)
    span = (high - low) or 1.0
    columns = _columns(rewards)
    width = (frame.width - frame.left - frame.right) / len(columns)
    height = (frame.height - frame.top - frame.bottom) / _BINS
    gap = 2.0 if width > 6 else 0.5
    shades: dict[int, list[svg.Point]] = {}
    for column, (_, some) in enumerate(columns):
        counts = Counter(min(_BINS - 1, int((reward - low) / span * _BINS)) for reward in some)
        for box, count in counts.items():
            corner = (frame.left + column * width + gap / 2, frame.y((box + 1) / _BINS) + gap / 2)
            shades.setdefault(max(1, round(_SHADES * (count / len(some)) ** 0.6)), []).append(corner)
    drawn = [
        svg.boxes(corners, width - gap, height - gap, palette.series, shade / _SHADES)
        for shade, corners in sorted(shades.items())
    ]
    means = [
        (frame.left + (column + 0.5) * width, frame.y((fmean(some) - low) / span))
        for column, (_, some) in enumerate(columns)
    ]
    return [
        *_reward_labels(frame, palette, low, high, columns, width),
        *drawn,
        *_mean_line(means, fmean(columns[-1][1]), frame, palette),
    ]


def listed_rewards(report: Json) -> dict[int, list[float]]:
    """Return the rewards of the listed training rollouts by iteration."""
    by_iteration: dict[int, list[float]] = {}
    for batch, rows in batches_of(report).items():
        if batch.is_training and (some := [row.reward for row in rows if row.reward is not None]):
            by_iteration.setdefault(batch.iteration, []).extend(some)
    return dict(sorted(by_iteration.items()))


def _columns(rewards: Mapping[int, Sequence[float]]) -> list[tuple[int, list[float]]]:
    """Return the first iteration and the rewards of each column. Columns join iterations if there are many."""
    numbers = list(rewards)
    together = -(-len(numbers) // _MAX_COLUMNS)
    blocks = [numbers[start : start + together] for start in range(0, len(numbers), together)]
    return [(block[0], [reward for number in block for reward in rewards[number]]) for block in blocks]


def _reward_labels(
    frame: Frame, palette: Palette, low: float, high: float, columns: Sequence[tuple[int, object]], width: float
) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        words = signed(low + share * (high - low), 2)
        y = frame.y(share) + (4 if share == 0.5 else 10 if share == 1 else 0)
        yield svg.label(frame.left - 8, y, words, anchor="end", fill=palette.faint, size=frame.text)
    centers = ((frame.left + (column + 0.5) * width, number) for column, (number, _) in enumerate(columns))
    yield from iteration_labels(frame, palette, centers)


def _mean_line(means: Sequence[svg.Point], latest: float, frame: Frame, palette: Palette) -> Iterator[str]:
    yield svg.curve(means, palette.second, 2.5)
    words = f"mean {signed(latest, 2)}"
    _, y = means[-1]
    yield svg.label(frame.width - frame.right + 12, y + 4, words, fill=palette.second, size=frame.text, weight="bold")


def phases_bar(report: Json, palette: Palette, frame: Frame) -> list[str]:
    """Draw the seconds of the phases as one bar."""
    seconds = phase_seconds(report)
    total = sum(seconds.values())
    if total <= 0:
        return []
    x, drawn = frame.left, []
    whole = frame.width - frame.left - frame.right
    for name, color in zip(PHASES, palette.phases, strict=True):
        width = seconds.get(name, 0.0) / total * whole
        if width > 0:
            drawn.append(svg.boxes([(x, frame.top)], width, frame.height - frame.top - frame.bottom, color))
            x += width
    return drawn


def phase_seconds(report: Json) -> dict[str, float]:
    """Return the seconds of each phase, unknown phases as `other`."""
    seconds: Counter[str] = Counter()
    for name, sums in report["cost"]["phases"].items():
        seconds[name if name in PHASES else "other"] += sums["seconds"]
    return {name: seconds[name] for name in PHASES if seconds[name] > 0}
