"""Charts by iteration: the frame that they are drawn in, its labels, and held-out success with its intervals."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from learnloop_service.app.plots import svg
from learnloop_service.app.statistics.verdict import headline
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.shares import wilson

LEGEND = "band: 95% interval (Wilson); dashed: greedy; triangles: test split"
"""What `held_out_chart` shows."""
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
    phases: Sequence[str] = ()


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


def held_out_chart(rows: Sequence[Json], total: int, palette: Palette, frame: Frame) -> list[str]:
    """Draw the headline figure of a run of `total` iterations with its 95% intervals, greedy rollouts, and the test
    split."""
    heads = headline(rows)
    if not heads:
        return [nothing(frame, palette, "No held-out evaluation yet")]
    last = max(total, heads[-1]["iteration"], 1)
    bands = [wilson(row["success"], row["scenarios"]) for row in heads]
    points = [(frame.x(row["iteration"], last), frame.y(row["success"])) for row in heads]
    upper = [(x, frame.y(high)) for (x, _), (_, high) in zip(points, bands, strict=True)]
    lower = [(x, frame.y(low)) for (x, _), (low, _) in zip(points, bands, strict=True)]
    if len(points) == 1:  # an interval needs some width to be seen
        upper, lower = [(x + d, y) for x, y in upper for d in (-5, 5)], [(x + d, y) for x, y in lower for d in (-5, 5)]
    base_y = frame.y(heads[0]["success"])
    return [
        *grid(frame, palette),
        *iteration_labels(frame, palette, ((x, row["iteration"]) for (x, _), row in zip(points, heads, strict=True))),
        svg.area([*upper, *reversed(lower)], palette.series, 0.16),
        svg.line((frame.left, base_y), (frame.width - frame.right, base_y), palette.faint, 1, "2 4"),
        *_others(rows, heads[0], frame, palette, last),
        svg.curve(points, palette.series, 2.5),
        *(svg.dot(point, palette.series, 3.5) for point in points if len(points) <= _MAX_DOTS),
        *end_labels(frame, _ends(rows, heads, palette)),
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


def _ends(rows: Sequence[Json], heads: Sequence[Json], palette: Palette) -> Iterator[tuple[float, str, str, str]]:
    """Yield the last success, the name, the color and the weight of each series."""
    head = heads[-1]
    yield head["success"], head["mode"], palette.series, "bold"
    greedy = [row for row in rows if (row["split"], row["mode"]) == (head["split"], "greedy")]
    if greedy:
        yield greedy[-1]["success"], "greedy", palette.second, "normal"
    tests = _tests(rows) if head["split"] != "test" else []
    if len(tests) > 1:
        yield tests[-1]["success"], "test", palette.third, "normal"
    if len(heads) > 1:
        yield heads[0]["success"], "base", palette.faint, "normal"


def end_labels(frame: Frame, ends: Iterable[tuple[float, str, str, str]]) -> Iterator[str]:
    """Write the names and values of the series at the right edge, moved apart where they would overlap."""
    lowest = float("-inf")
    for share, name, color, weight in sorted(ends, key=lambda end: -end[0]):
        lowest = max(frame.y(share) + 4, lowest + frame.text + 4)
        x = frame.width - frame.right + 12
        yield svg.label(x, lowest, f"{name} {share:.0%}", fill=color, size=frame.text, weight=weight)


def grid(frame: Frame, palette: Palette, words: Callable[[float], str] = "{:.0%}".format) -> Iterator[str]:
    """Draw a line at each quarter of the height, with what `words` says of its share."""
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = frame.y(share)
        yield svg.line((frame.left, y), (frame.width - frame.right, y), palette.grid)
        yield svg.label(frame.left - 8, y + 4, words(share), anchor="end", fill=palette.faint, size=frame.text)


def iteration_labels(frame: Frame, palette: Palette, places: Iterable[tuple[float, int]]) -> Iterator[str]:
    """Write the numbers of iterations at their x, as many as fit."""
    last_x = float("-inf")
    y = frame.height - frame.bottom + frame.text + 8
    for x, number in places:
        if x - last_x >= 3.2 * frame.text:
            last_x = x
            words = "base" if number == 0 else str(number)
            yield svg.label(x, y, words, anchor="middle", fill=palette.faint, size=frame.text)


def nothing(frame: Frame, palette: Palette, words: str) -> str:
    """Write in place of a chart why there is none."""
    return svg.label(frame.width / 2, frame.height / 2, words, anchor="middle", fill=palette.faint, size=frame.text)
