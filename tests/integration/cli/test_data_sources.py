"""Data of a user's own, which packages prepare for `learnloop demo` and `learnloop pipeline`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from learnloop_service.app.cli import data_sources
from learnloop_service.app.cli.data_sources import GROUP, data_source
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.app.datasets.store import DatasetStore, Version
from learnloop_service.environment import plugins
from tests.fakes.installed import installed
from tests.integration.cli.conftest import Learnloop

_SOURCE = """
from pydantic import BaseModel, Field

from learnloop_service.app.cli.data_sources import DataSource
from learnloop_service.app.datasets.store import DatasetStore, Prepared, Version

class Recipe(BaseModel):
    rows: int = Field(ge=3)

def prepare(recipe, settings):
    made = Version("table", 1, "2026-11-30", {"sha256": "a"}, None, recipe.model_dump(), {}, {})
    return Prepared(DatasetStore(settings.data_dir).add_version(made), ("inbox",))

TABLE = DataSource("Files.", lambda: Recipe, lambda given: Recipe(rows=len(given)), prepare)
"""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[None]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "tables_of_tests.py").write_text(_SOURCE)
    points = {
        "answers.table": "tables_of_tests:TABLE",
        "mcp.log": "tables_of_tests:prepare",
        "agent.log": "gone:SOURCE",
    }
    with installed(site, GROUP, points):
        yield


def pipeline(tmp_path: Path, text: str) -> tuple[str, ...]:
    (tmp_path / "p.yaml").write_text(text)
    return ("pipeline", "data", "--config", str(tmp_path / "p.yaml"), "--data-dir", str(tmp_path / "data"))


@pytest.mark.usefixtures("table")
def test_a_pipeline_prepares_what_the_package_of_its_environment_reads(learnloop: Learnloop, tmp_path: Path) -> None:
    ran = learnloop(*pipeline(tmp_path, "data:\n  rows: 7\ntrain:\n  environment: answers\n"))
    assert (ran.exit_code, "table@1" in ran.stdout) == (0, True), ran.stderr
    [version] = DatasetStore(tmp_path / "data").versions("table")
    assert isinstance(version, Version)
    assert version.recipe == {"rows": 7}
    wrong = learnloop(*pipeline(tmp_path, "data:\n  rows: 2\ntrain:\n  environment:\n    name: answers\n"))
    assert wrong.exit_code == 2
    assert "p.yaml:2:data.rows:Inputshouldbegreater" in "".join(wrong.stderr.replace("│", "").split())


@pytest.mark.usefixtures("table")
def test_a_source_is_found_by_its_environment_and_the_demo_has_its_option() -> None:
    assert data_source("answers").demo_recipe(["a", "b", "c"]).rows == 3
    assert data_sources.options()["--table"] == "answers"
    assert "Files." in data_sources.helps()
    for environment, why in (
        ("mcp", "of 'mcp.log' is no DataSource"),
        ("agent", "The data source 'agent.log' cannot be loaded from gone:SOURCE"),
        ("openenv", "^Nothing prepares data for the environment openenv here.$"),
    ):
        with pytest.raises(Failure, match=why):
            data_source(environment)


def test_without_the_package_the_demo_and_a_pipeline_say_what_to_install(
    learnloop: Learnloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = plugins.registered
    monkeypatch.setattr(plugins, "registered", lambda group: {} if group == GROUP else registered(group))
    needs = "Nothing prepares data for the environment email_search here. It comes with learnloop-mail, which is"
    demo = learnloop("demo", "--base-model", "m", "--mailbox", "a.mbox", "--data-dir", str(tmp_path / "demo"))
    assert (demo.exit_code, demo.stdout, demo.stderr.count("\n")) == (1, "", 1)
    assert needs in demo.stderr
    refused = learnloop(*pipeline(tmp_path, "train: {}\ndata:\n  name: mine\n  emails: a.mbox\n"))
    assert refused.exit_code == 2
    assert f"p.yaml:2:data:{needs}".replace(" ", "") in "".join(refused.stderr.replace("│", "").split())
    assert not (tmp_path / "data").exists()
