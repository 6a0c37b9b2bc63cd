"""`learnloop --help` answers at once: nothing heavy is imported for it."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.help_panels import shown_panels
from tests.integration.cli.conftest import Learnloop

HEAVY = ("torch", "transformers", "art", "fastapi", "uvicorn", "sqlalchemy", "pydantic_settings", "alembic")


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, learnloop_service.app.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("command", ["demo", "serve", "train", "ask", "runs", "inbox", "feedback"])
def test_every_command_explains_itself(learnloop: Learnloop, command: str) -> None:
    ran = learnloop(command, "--help")
    assert ran.exit_code == 0
    assert f"learnloop {command}" in ran.stdout.replace("root", "learnloop")
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_an_unknown_command_is_a_usage_error(learnloop: Learnloop) -> None:
    assert learnloop("dance").exit_code == 2


def test_the_version_is_printed(learnloop: Learnloop) -> None:
    ran = learnloop("--version")
    assert (ran.exit_code, ran.stdout) == (0, f"learnloop {version('learnloop')}\n")


def test_the_help_has_the_commands_in_five_panels(learnloop: Learnloop) -> None:
    panels = shown_panels(learnloop("--help").stdout)
    assert list(panels) == ["Options", "Start", "Look", "Use", "Improve", "Operate"]
    assert "pipeline" in panels["Start"]  # an entry point, as packages have
    assert max(map(len, panels.values())) <= 8


def test_a_command_keeps_its_old_name_which_is_not_listed(learnloop: Learnloop) -> None:
    help_text = learnloop("promotions", "--help").stdout
    assert "Take a promoted name away" in help_text
    assert learnloop("deployments", "--help").stdout.splitlines()[2:] == help_text.splitlines()[2:]
    assert "deployments" not in learnloop("--help").stdout
