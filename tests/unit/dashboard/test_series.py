"""What charts make of figures: smoothed ones, those of a range, and the values that a logarithmic axis names."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_PARTS = Path(__file__).parents[3] / "app" / "dashboard" / "static" / "parts"
_NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(_NODE is None, reason="no Node on PATH")


def _value(folder: Path, module: str, expression: str) -> Any:
    """The value of an expression with the exports of a module of the dashboard."""
    names = {"series": "smoothed, within, spreads", "scale": "scale, logTicks, logRangeOf"}[module]
    shutil.copy(_PARTS / f"{module}.js", folder / f"{module}.mjs")
    (folder / "main.mjs").write_text(
        f'import {{ {names} }} from "./{module}.mjs";\nconsole.log(JSON.stringify({expression}));'
    )
    command = [_NODE or "", str(folder / "main.mjs")]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_moving_average_starts_at_the_first_figure_and_leaves_gaps(tmp_path: Path) -> None:
    assert _value(tmp_path, "series", "smoothed([4, null, 4, 1], 0)") == [4, None, 4, 1]
    values = _value(tmp_path, "series", "smoothed([null, 2, null, 4], 0.5)")
    assert values == pytest.approx([None, 2, None, 10 / 3])
    assert _value(tmp_path, "series", "smoothed(Array(500).fill(7), 0.98).at(-1)") == pytest.approx(7)


def test_a_range_takes_the_same_part_of_each_series(tmp_path: Path) -> None:
    part = _value(tmp_path, "series", "within([0, 2, 4, 6], [[1, 2, 3, 4], [5, 6, 7, 8]], [1, 4])")
    assert part == {"x": [2, 4], "series": [[2, 3], [6, 7]]}
    nothing: Any = {"x": [], "series": [[]]}
    assert _value(tmp_path, "series", "within([0, 2], [[1, 2]], [3, 9])") == nothing
    assert _value(tmp_path, "series", "within([4, 6], [[1, 2]], [0, 3])") == nothing


def test_runs_of_the_same_settings_have_a_spread(tmp_path: Path) -> None:
    runs = "[new Map([[2, 1], [1, 4]]), new Map([[1, 2], [3, null]])]"
    spread = _value(tmp_path, "series", f"[...spreads({runs})]")
    assert spread == [[1, {"mean": 3, "low": 2, "high": 4}], [2, {"mean": 1, "low": 1, "high": 1}]]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0005, 20, [0.001, 0.01, 0.1, 1, 10]),
        (1e-9, 1, [1e-9, 1e-6, 0.001, 1]),
        (0.8, 4, [1, 2]),
        (2.2, 2.8, [2.2, 2.4, 2.6, 2.8]),
    ],
)
def test_a_logarithmic_axis_names_round_values(tmp_path: Path, low: float, high: float, ticks: list[float]) -> None:
    count = 5 if len(ticks) == 5 else 4
    assert _value(tmp_path, "scale", f"logTicks({low}, {high}, {count}, String)") == ticks


def test_equal_ratios_are_equally_wide_on_a_logarithmic_axis(tmp_path: Path) -> None:
    axis = "scale([0.01, 100], [0, 400], true)"
    assert _value(tmp_path, "scale", f"[0.01, 0.1, 1, 100].map({axis}.at)") == pytest.approx([0, 100, 200, 400])
    assert _value(tmp_path, "scale", f"{axis}.back(300)") == pytest.approx(10)
    low, high = _value(tmp_path, "scale", "logRangeOf([0, -5, null, 1, 100])")
    assert 0.5 < low < 1
    assert 100 < high < 200
