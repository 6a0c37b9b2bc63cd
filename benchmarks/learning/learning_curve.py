"""Draw a run's learning curve as SVG: success in training and on held-out scenarios.

learnloop runs show RUN_ID --json > run.json
python -m benchmarks.learning.learning_curve run.json > docs/learning_curve.svg
"""

import argparse
import json
import sys
from pathlib import Path

from app.plots import svg
from app.plots.charts import Frame, Palette, end_labels, grid, iteration_labels
from environment.json_type import Json

_COLORS = Palette("#1f2328", "#59636e", "#d0d7de", "#0969da", "#1a7f37", "#8c959f")
_FRAME = Frame(720, 300, left=56, right=190, top=44, bottom=40)


def curve(run: Json) -> str:
    """Return the SVG of a run in the form returned by `GET /runs/{id}`."""
    last = run["progress"]["iterations_total"]
    training = [(row["iteration"], row["success"]) for row in run["iterations"] if row["iteration"] > 0]
    curves = (
        ("training rollouts", _COLORS.third, [each for each in training if each[1] is not None]),
        ("held out, sampled", _COLORS.series, _held_out(run, "sampled")),
        ("held out, greedy", _COLORS.second, _held_out(run, "greedy")),
    )
    parts = [
        *grid(_FRAME, _COLORS),
        *iteration_labels(_FRAME, _COLORS, ((_FRAME.x(number, last), number) for number in range(last + 1))),
    ]
    for _, color, points in curves:
        if places := [(_FRAME.x(iteration, last), _FRAME.y(success)) for iteration, success in points]:
            parts.append(svg.curve(places, color, 1.2 if color == _COLORS.third else 2))
            parts += [svg.dot(place, color, 3) for place in places if color != _COLORS.third]
    parts += end_labels(_FRAME, ((points[-1][1], name, color, "normal") for name, color, points in curves if points))
    title = f"{run['environment']}: share of rollouts that succeed, by iteration (seed {run['request']['seed']})"
    return svg.document(_FRAME.width, _FRAME.height, title, [svg.label(_FRAME.left, 24, title, size=14), *parts])


def _held_out(run: Json, mode: str) -> list[tuple[int, float]]:
    """Return validation success by iteration."""
    rows = [row for row in run["evaluations"] if row["split"] == "validation" and row["mode"] == mode]
    return sorted((row["iteration"], row["success"]) for row in rows)


def main() -> None:
    """Write the SVG to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="the JSON of a completed run")
    given = parser.parse_args()
    sys.stdout.write(curve(json.loads(given.run.read_text())))


if __name__ == "__main__":
    main()
