"""The site's page on the command line has every command and option that `--help` shows."""

import re
from functools import cache

import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from scripts.command_reference import reference

_TITLE = re.compile(r"^## `learnloop(.*?)(?: COMMAND)?`$", re.MULTILINE)


@cache
def sections() -> dict[str, str]:
    """The page's section about each command, by the command's words; "" is `learnloop` itself."""
    _, *parts = _TITLE.split(reference())
    return {title.strip(): text for title, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("command", sections())
def test_a_section_has_what_the_help_shows(command: str) -> None:
    help_text = CliRunner().invoke(app, [*command.split(), "--help"]).output
    names = _names(help_text, r"(?!Options|Arguments)[^\n]*?", r"│ ([a-z][\w-]*) ")
    assert {f"{command} {name}".strip() for name in names} <= set(sections())
    options = _names(help_text, "Options", r"│ \*?\s*(--[a-z][\w-]*)") - {"--help"}
    assert {option for option in options if option not in sections()[command]} == set()


def test_no_section_is_of_a_command_that_does_not_exist() -> None:
    assert len(sections()) > 40
    for command in filter(None, sections()):
        above = CliRunner().invoke(app, [*command.split()[:-1], "--help"]).output
        assert re.search(rf"^│ {command.split()[-1]} ", above, re.MULTILINE), command


def _names(help_text: str, table: str, name: str) -> set[str]:
    """The names that the help's tables with this title have in their first column."""
    rows = "".join(re.findall(rf"╭─ {table} ─+╮\n(.*?)╰", help_text, re.DOTALL))
    return set(re.findall(rf"^{name}", rows, re.MULTILINE))
