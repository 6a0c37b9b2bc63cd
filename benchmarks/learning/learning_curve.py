"""Draw a run's learning curve as SVG: success in training and on held-out scenarios.

learnloop runs show RUN_ID --json > run.json
python -m benchmarks.learning.learning_curve run.json > docs/learning_curve.svg
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from environment.json_type import Json

Point = tuple[int, float]
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 190, 44, 40
_LINE_HEIGHT = 15
_TRAINING, _SAMPLED, _GREEDY = "#8c959f", "#0969da", "#1a7f37"


def curve(run: Json) -> str:
    """Return the SVG of a run in the form returned by `GET /runs/{id}`."""
    last = run["progress"]["iterations_total"]
    training = [(row["iteration"], row["success"]) for row in run["iterations"] if row["iteration"] > 0]
    curves = {
        (_TRAINING, "training rollouts"): _known(training),
        (_SAMPLED, "held out, sampled"): _held_out(run, "sampled"),
        (_GREEDY, "held out, greedy"): _held_out(run, "greedy"),
    }
    lines = [_line(points, last, colour, dots=colour != _TRAINING) for (colour, _), points in curves.items()]
    labels = [
        (points[-1][1], colour, f"{name} {points[-1][1]:.0%}") for (colour, name), points in curves.items() if points
    ]
    title = f"{run['environment']}: share of rollouts that succeed, by iteration (seed {run['request']['seed']})"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="24" font-size="14" fill="#1f2328">{title}</text>',
            *_axes(last),
            *lines,
            *_labels(labels),
            "</svg>",
            "",
        ]
    )


def _held_out(run: Json, mode: str) -> list[Point]:
    """Return validation success by iteration."""
    rows = [row for row in run["evaluations"] if row["split"] == "validation" and row["mode"] == mode]
    return sorted((row["iteration"], row["success"]) for row in rows)


def _known(points: Iterable[tuple[int, float | None]]) -> list[Point]:
    return [(iteration, success) for iteration, success in points if success is not None]


def _x(iteration: int, last: int) -> float:
    return _LEFT + iteration / last * (_WIDTH - _LEFT - _RIGHT)


def _y(success: float) -> float:
    return _TOP + (1 - success) * (_HEIGHT - _TOP - _BOTTOM)


def _axes(last: int) -> list[str]:
    parts = []
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#d0d7de" stroke-width="1"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#59636e">{tenths * 10}%</text>')
    for iteration in range(0, last + 1, max(1, last // 7)):
        x = _x(iteration, last)
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 16}" text-anchor="middle" fill="#59636e">{iteration or "base"}</text>'
        )
    return parts


def _line(points: Sequence[Point], last: int, colour: str, *, dots: bool) -> str:
    places = [(_x(iteration, last), _y(success)) for iteration, success in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{2 if dots else 1.2}"/>']
    if dots:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return "\n".join(parts)


def _labels(labels: Iterable[tuple[float, str, str]]) -> Iterator[str]:
    """Place each label at the end of its curve, moved down where it would overlap the one above."""
    free = 0.0
    for success, colour, text in sorted(labels, reverse=True):
        y = max(_y(success) + 4, free)
        free = y + _LINE_HEIGHT
        yield f'<text x="{_WIDTH - _RIGHT + 10}" y="{y:.1f}" fill="{colour}">{text}</text>'


def main() -> None:
    """Write the SVG to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="the JSON of a completed run")
    given = parser.parse_args()
    sys.stdout.write(curve(json.loads(given.run.read_text())))


if __name__ == "__main__":
    main()
