"""Commands that installed packages add."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import GROUP, app
from learnloop_service.environment import plugins
from tests.fakes.installed import installed
from tests.help_panels import shown_panels

_COMMANDS = '''
import typer

def greet(name: str, loud: bool = False) -> None:
    """Greet somebody."""
    print(f"Hello, {name}{'!' if loud else '.'}")

def wave() -> None:
    """Wave."""

wave.rich_help_panel = "Use"
several = typer.Typer(help="Several of them.", rich_help_panel="Greetings")
several.command()(greet)

@several.command()
def leave() -> None:
    """Say goodbye."""
    print("Goodbye.")
'''


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "greetings.py").write_text(_COMMANDS)
    points = {
        "greet": "greetings:greet",
        "several": "greetings:several",
        "wave": "greetings:wave",
        "broken": "greetings:nothing",
        "runs": "greetings:greet",
        "runs.greet": "greetings:greet",
        "runs.show": "greetings:greet",
        "runs.broken": "greetings:nothing",
        "several.more": "greetings:greet",
    }
    with installed(tmp_path, GROUP, points):
        yield


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["greet", "Mara", "--loud"], "Hello, Mara!\n"),
        (["several", "greet", "Bo"], "Hello, Bo.\n"),
        (["several", "leave"], "Goodbye.\n"),
        (["runs", "greet", "Bo"], "Hello, Bo.\n"),
        (["several", "more", "Bo"], "Hello, Bo.\n"),
    ],
)
def test_they_are_called_like_ours(arguments: list[str], printed: str) -> None:
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0
    assert ran.stdout == printed


def test_the_help_lists_them_beside_ours() -> None:
    ran = CliRunner().invoke(app, ["--help"])
    assert ran.exit_code == 0
    for text in (
        "Greet somebody.",
        "Several of them.",
        "cannot be loaded from greetings:nothing",
        "List, inspect and control runs.",
    ):
        assert text in " ".join(ran.stdout.replace("│", " ").split()), text


def test_the_help_has_them_in_the_panel_that_they_name() -> None:
    panels = shown_panels(CliRunner().invoke(app, ["--help"]).stdout)
    assert panels["From packages"] == ["greet", "broken"]
    assert panels["Greetings"] == ["several"]
    assert {"ask", "wave"} <= set(panels["Use"])


def test_one_that_cannot_be_loaded_says_why() -> None:
    ran = CliRunner().invoke(app, ["broken"])
    assert ran.exit_code == 1
    assert "The command 'broken' cannot be loaded from greetings:nothing: AttributeError" in " ".join(
        ran.stderr.split()
    )


def test_none_replaces_one_of_ours() -> None:
    assert "verify" in CliRunner().invoke(app, ["runs", "--help"]).stdout
    assert "Greet somebody." not in CliRunner().invoke(app, ["runs", "show", "--help"]).stdout


def test_a_group_of_ours_lists_what_packages_add_to_it() -> None:
    help_text = CliRunner().invoke(app, ["runs", "--help"]).stdout
    assert "Greet somebody." in help_text
    assert "cannot be loaded from greetings:nothing" in " ".join(help_text.replace("│", " ").split())
    assert "runs.greet" not in CliRunner().invoke(app, ["--help"]).stdout


def test_one_of_a_group_that_cannot_be_loaded_says_why() -> None:
    ran = CliRunner().invoke(app, ["runs", "broken", "--all", "some"])
    assert ran.exit_code == 1
    assert "The command 'runs.broken' cannot be loaded from greetings:nothing" in " ".join(ran.stderr.split())


@pytest.mark.parametrize("arguments", [["data", "prepare", "mine", "--emails", "a.mbox"], ["inbox", "import", "-h"]])
def test_one_whose_package_is_missing_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = plugins.registered
    monkeypatch.setattr(plugins, "registered", lambda group: {} if group == GROUP else registered(group))
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 1
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert f"There is no command `learnloop {' '.join(arguments[:2])}`. It comes with learnloop-mail, which is" in line
    assert "learnloop-mail" not in CliRunner().invoke(app, [arguments[0], "--help"]).stdout


def test_an_unknown_one_is_a_usage_error() -> None:
    ran = CliRunner().invoke(app, ["dance"])
    assert ran.exit_code == 2
    assert "dance" in ran.stderr
