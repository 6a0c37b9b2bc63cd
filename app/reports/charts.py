"""The charts of a report, as SVG. They are drawn from the report's data only."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from app.plots import svg
from app.reports.format import signed
from app.reports.rollouts import batches_of
from app.statistics.verdict import headline
from environment.json_type import Json
from training.statistics.shares import wilson

PHASES = ("rollout", "judge", "train", "evaluate", "reflect", "other")
_BINS = 12
_MAX_COLUMNS = 60
_SHADES = 6
_MAX_DOTS = 40


@dataclass(frozen=True, slots=True)
class Palette:
    """Colors, as SVG takes them: values, or variables of the page's style sheet."""

    ink: str
    faint: str
    grid: str
    series: str
    second: str
    third: str
    phases: Sequence[str]


PAGE = Palette(
    "var(--ink)",
    "var(--muted)",
    "var(--line)",
    "var(--series)",
    "var(--second)",
    "var(--third)",
    [f"var(--phase-{name})" for name in PHASES],
)


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a chart, and the margins around its plot."""

    width: int
    height: int
    left: float = 46
    right: float = 112
    top: float = 14
    bottom: float = 30
    text: int = 12

    def x(self, iteration: float, last: int) -> float:
        return self.left + iteration / max(last, 1) * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        return self.top + (1 - share) * (self.height - self.top - self.bottom)


def held_out_chart(report: Json, palette: Palette, frame: Frame) -> list[str]:
    """Draw the headline figure with its 95% intervals, greedy rollouts, and the test split."""
    rows = report["evaluations"]["items"]
    heads = headline(rows)
    if not heads:
        return [_nothing(frame, palette, "No held-out evaluation yet")]
    last = max(report["run"]["iterations_total"], heads[-1]["iteration"], 1)
    bands = [wilson(row["success"], row["scenarios"]) for row in heads]
    points = [(frame.x(row["iteration"], last), frame.y(row["success"])) for row in heads]
    upper = [(x, frame.y(high)) for (x, _), (_, high) in zip(points, bands, strict=True)]
    lower = [(x, frame.y(low)) for (x, _), (low, _) in zip(points, bands, strict=True)]
    if len(points) == 1:  # an interval needs some width to be seen
        upper, lower = [(x + d, y) for x, y in upper for d in (-5, 5)], [(x + d, y) for x, y in lower for d in (-5, 5)]
    base_y = frame.y(heads[0]["success"])
    return [
        *_shares(frame, palette),
        *_iteration_labels(frame, palette, [row["iteration"] for row in heads], last),
        svg.area([*upper, *reversed(lower)], palette.series, 0.16),
        svg.line((frame.left, base_y), (frame.width - frame.right, base_y), palette.faint, 1, "2 4"),
        *_others(rows, heads[0], frame, palette, last),
        svg.curve(points, palette.series, 2.5),
        *(svg.dot(point, palette.series, 3.5) for point in points if len(points) <= _MAX_DOTS),
        *_end_labels(rows, heads, frame, palette),
    ]


def _others(rows: Sequence[Json], head: Json, frame: Frame, palette: Palette, last: int) -> Iterator[str]:
    """Draw the same split's greedy rollouts, and the test split where it is not the headline."""
    greedy = [row for row in rows if (row["split"], row["mode"]) == (head["split"], "greedy")]
    if greedy:
        places = [(frame.x(row["iteration"], last), frame.y(row["success"])) for row in greedy]
        yield svg.curve(places, palette.second, 1.5, "6 4")
    if head["split"] != "test":
        for row in _tests(rows):
            x, y = frame.x(row["iteration"], last), frame.y(row["success"])
            low, high = (frame.y(edge) for edge in wilson(row["success"], row["scenarios"]))
            yield svg.line((x, low), (x, high), palette.third, 1.5)
            yield svg.area([(x - 6, y + 5), (x + 6, y + 5), (x, y - 6)], palette.third, 1.0)


def _tests(rows: Sequence[Json]) -> list[Json]:
    return [row for row in rows if (row["split"], row["mode"]) == ("test", "sampled")]


def _end_labels(rows: Sequence[Json], heads: Sequence[Json], frame: Frame, palette: Palette) -> Iterator[str]:
    """Write the names and values of the series at the right edge, moved apart where they would overlap."""
    head = heads[-1]
    found = [(head["success"], f"{head['mode']} {head['success']:.0%}", palette.series, "bold")]
    greedy = [row for row in rows if (row["split"], row["mode"]) == (head["split"], "greedy")]
    if greedy:
        found.append((greedy[-1]["success"], f"greedy {greedy[-1]['success']:.0%}", palette.second, "normal"))
    tests = _tests(rows) if head["split"] != "test" else []
    if len(tests) > 1:
        found.append((tests[-1]["success"], f"test {tests[-1]['success']:.0%}", palette.third, "normal"))
    if len(heads) > 1:
        found.append((heads[0]["success"], f"base {heads[0]['success']:.0%}", palette.faint, "normal"))
    lowest = float("-inf")
    for share, words, color, weight in sorted(found, key=lambda each: -each[0]):
        y = max(frame.y(share) + 4, lowest + frame.text + 4)
        lowest = y
        x = frame.width - frame.right + 12
        yield svg.label(x, y, words, fill=color, size=frame.text, weight=weight)


def _shares(frame: Frame, palette: Palette) -> Iterator[str]:
    for quarter in range(5):
        y = frame.y(quarter / 4)
        yield svg.line((frame.left, y), (frame.width - frame.right, y), palette.grid)
        yield svg.label(frame.left - 8, y + 4, f"{quarter / 4:.0%}", anchor="end", fill=palette.faint, size=frame.text)


def _iteration_labels(frame: Frame, palette: Palette, numbers: Sequence[int], last: int) -> Iterator[str]:
    """Write the numbers of iterations, as many as fit."""
    taken = float("-inf")
    y = frame.height - frame.bottom + frame.text + 8
    for number in numbers:
        x = frame.x(number, last)
        if x - taken >= 3.2 * frame.text:
            taken = x
            words = "base" if number == 0 else str(number)
            yield svg.label(x, y, words, anchor="middle", fill=palette.faint, size=frame.text)


def rewards_chart(report: Json, palette: Palette, frame: Frame) -> list[str]:
    """Draw the rewards of all listed training rollouts: a column for each iteration, darker where there are more, with
    the mean as a line."""
    rewards = listed_rewards(report)
    if not rewards:
        return [_nothing(frame, palette, "No training rollout has a reward yet")]
    everything = [reward for some in rewards.values() for reward in some]
    low, high = min(everything), max(everything)
    span = (high - low) or 1.0
    columns = _columns(rewards)
    width = (frame.width - frame.left - frame.right) / len(columns)
    height = (frame.height - frame.top - frame.bottom) / _BINS
    gap = 2.0 if width > 6 else 0.5
    shades: dict[int, list[svg.Point]] = {}
    for place, (_, some) in enumerate(columns):
        counts = Counter(min(_BINS - 1, int((reward - low) / span * _BINS)) for reward in some)
        for box, count in counts.items():
            corner = (frame.left + place * width + gap / 2, frame.y((box + 1) / _BINS) + gap / 2)
            shades.setdefault(max(1, round(_SHADES * (count / len(some)) ** 0.6)), []).append(corner)
    drawn = [
        svg.boxes(corners, width - gap, height - gap, palette.series, shade / _SHADES)
        for shade, corners in sorted(shades.items())
    ]
    means = [
        (frame.left + (place + 0.5) * width, frame.y((fmean(some) - low) / span))
        for place, (_, some) in enumerate(columns)
    ]
    return [
        *_reward_labels(frame, palette, low, high, columns, width),
        *drawn,
        *_mean_line(means, fmean(columns[-1][1]), frame, palette),
    ]


def listed_rewards(report: Json) -> dict[int, list[float]]:
    """Return the rewards of the listed training rollouts by iteration."""
    found: dict[int, list[float]] = {}
    for batch, rows in batches_of(report).items():
        if batch.is_training and (some := [row.reward for row in rows if row.reward is not None]):
            found.setdefault(batch.iteration, []).extend(some)
    return dict(sorted(found.items()))


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
        words = signed(low + share * (high - low))
        y = frame.y(share) + (4 if share == 0.5 else 10 if share == 1 else 0)
        yield svg.label(frame.left - 8, y, words, anchor="end", fill=palette.faint, size=frame.text)
    taken = float("-inf")
    for place, (iteration, _) in enumerate(columns):
        x = frame.left + (place + 0.5) * width
        if x - taken >= 2.6 * frame.text:
            taken = x
            y = frame.height - frame.bottom + frame.text + 8
            yield svg.label(x, y, str(iteration), anchor="middle", fill=palette.faint, size=frame.text)


def _mean_line(means: Sequence[svg.Point], latest: float, frame: Frame, palette: Palette) -> Iterator[str]:
    yield svg.curve(means, palette.second, 2.5)
    words = f"mean {signed(latest)}"
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
    found: Counter[str] = Counter()
    for name, sums in report["cost"]["phases"].items():
        found[name if name in PHASES else "other"] += sums["seconds"]
    return {name: found[name] for name in PHASES if found[name] > 0}


def _nothing(frame: Frame, palette: Palette, words: str) -> str:
    return svg.label(frame.width / 2, frame.height / 2, words, anchor="middle", fill=palette.faint, size=frame.text)
