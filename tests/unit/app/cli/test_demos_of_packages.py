"""Demos that installed packages add."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from learnloop_service.app.cli.demo.jobs import GROUP, demo_job
from learnloop_service.app.cli.terminal import Failure
from tests.fakes.installed import installed

_DEMOS = """
from learnloop_service.app.cli.demo.job import DemoJob

CHESS = DemoJob("It plays {environment}.", 3, lambda service, run: {}, lambda console, document: None)
WRONG = "no demo"
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "chess_demos.py").write_text(_DEMOS)
    points = {"chess": "chess_demos:CHESS", "wrong": "chess_demos:WRONG", "broken": "chess_demos:nothing"}
    with installed(tmp_path, GROUP, points):
        yield


def test_an_environment_has_the_demo_of_its_package() -> None:
    assert demo_job("chess").introduction == "It plays {environment}."
    assert demo_job("chess").iterations == 3


@pytest.mark.parametrize(("name", "what"), [("wrong", "is not a DemoJob"), ("broken", "cannot be loaded")])
def test_a_demo_that_is_none_is_named(name: str, what: str) -> None:
    with pytest.raises(Failure, match=rf"demo '{name}'.*{what}"):
        demo_job(name)
