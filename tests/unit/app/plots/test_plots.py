"""Plots: a run as SVG whatever its names are, and any of them as PNG."""

import struct
import sys
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from learnloop_service.app.plots.png import SCALE, NoRenderer, png
from learnloop_service.app.plots.run import run_svg
from learnloop_service.environment.json_type import Json
from tests.fonts import needs_font


def _run(iterations: Sequence[Json] = (), evaluations: Sequence[Json] = (), total: int = 3, **more: Any) -> Json:
    return {
        "run_id": "R",
        "status": "running",
        "environment": "email_search",
        "model": {"project": "p", "name": "n", "base_model": "b"},
        "progress": {"iterations_total": total},
        "iterations": list(iterations),
        "evaluations": list(evaluations),
    } | more


def _iteration(number: int) -> Json:
    mean = number / 1_000
    return {"iteration": number, "rewards": {"mean": mean, "min": mean - 1, "max": mean + 1}}


def _evaluation(number: int, success: float, split: str = "validation", mode: str = "sampled") -> Json:
    return {"iteration": number, "split": split, "mode": mode, "step": number, "success": success, "scenarios": 24}


def _words(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]


def test_a_run_has_rewards_with_spread_and_held_out_figures_with_intervals() -> None:
    evaluations = [
        _evaluation(0, 0.25),
        _evaluation(3, 0.75),
        _evaluation(3, 0.5, mode="greedy"),
        _evaluation(0, 0.1, "test"),
    ]
    drawn = run_svg(_run([_iteration(number) for number in range(1, 4)], evaluations))
    root = ElementTree.fromstring(drawn)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("polygon") == 3  # the spread of rewards, the intervals, and the triangle of the test split
    assert tags.count("polyline") == 2  # rewards and validation; a single point is a dot
    assert {"sampled 75%", "greedy 50%", "base 25%"} <= set(_words(drawn))
    assert "0%" in _words(drawn)


def test_a_run_without_figures_says_so() -> None:
    nothing = {"No training rollout has a reward yet", "No held-out evaluation yet"}
    assert nothing <= set(_words(run_svg(_run())))


def test_all_rewards_equal_and_a_thousand_iterations() -> None:
    equal = [{"iteration": 1, "rewards": {"mean": 1.0, "min": 1.0, "max": 1.0}}]
    ElementTree.fromstring(run_svg(_run(equal)))
    drawn = run_svg(_run([_iteration(number) for number in range(1, 1_001)], total=1_000))
    assert len(drawn) < 100_000
    assert len([word for word in _words(drawn) if word.isdigit()]) < 30


def test_names_are_text_and_nothing_else() -> None:
    odd = '<script>alert(1)</script>"\x00\x1b\u202e&'
    drawn = run_svg(_run(environment=odd, run_id=odd, model={"project": odd, "name": odd, "base_model": odd}))
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()}
    assert "script" not in tags
    assert not {"\x00", "\x1b", "\u202e"} & set(drawn)


@needs_font
def test_a_plot_as_png_has_the_size_of_the_svg() -> None:
    picture = png(run_svg(_run()))
    width, height = struct.unpack(">II", picture[16:24])
    assert picture.startswith(b"\x89PNG")
    assert (width, height) == (SCALE * 860, SCALE * 596)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(NoRenderer, match="the extra `plots`"):
        png(run_svg(_run()))


def test_without_a_font_it_does_not_draw_pictures_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import resvg_py

    draw = resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **options: draw(**options, skip_system_fonts=True))
    with pytest.raises(NoRenderer, match="font"):
        png(run_svg(_run()))
