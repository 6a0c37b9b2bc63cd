"""`--output`: results in files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from learnloop_service.app.cli.main import app
from tests.fakes.scripted_service import RUN_ID, ScriptedService
from tests.integration.cli.conftest import Learnloop

_MESSAGES_ONLY = {"bases remove", "webhooks remove", "webhooks enable", "webhooks disable", "webhooks redeliver"}
_MESSAGES_ONLY |= {"webhooks replay", "releases watch"}
_PROCESSES = {"agent", "serve", "worker", "engine", "migrate", "mcp"}
_FILES_BY_ARGUMENT = {"new environment", "new backend", "new agent", "data tasks", "models export", "improve material"}


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for part, subcommand in getattr(command, "commands", {}).items():
        yield f"{name}{part}", subcommand
        yield from _commands(subcommand, f"{name}{part} ")


def test_every_command_that_prints_a_result_has_it() -> None:
    lacking = {
        name
        for name, command in _commands(typer.main.get_command(app))
        if not hasattr(command, "commands") and not any("--output" in parameter.opts for parameter in command.params)
    }
    assert lacking == _MESSAGES_ONLY | _PROCESSES | _FILES_BY_ARGUMENT


def test_a_file_has_what_would_be_printed(learnloop: Learnloop, service: ScriptedService, tmp_path: Path) -> None:
    service.reads = service.iterations
    listed = learnloop("runs", "list", "--url", service.url).stdout
    file = tmp_path / "runs.txt"
    ran = learnloop("runs", "list", "-o", str(file), "--url", service.url)
    assert (ran.exit_code, ran.stdout, file.read_text()) == (0, "", listed)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_one_that_ends_in_json_has_json(
    learnloop: Learnloop, service: ScriptedService, tmp_path: Path, more: tuple[str, ...]
) -> None:
    file = tmp_path / "run.json"
    ran = learnloop("runs", "show", RUN_ID, "--output", str(file), *more, "--url", service.url)
    assert (ran.exit_code, json.loads(file.read_text())["run_id"]) == (0, RUN_ID)


def test_events_are_lines_of_json(learnloop: Learnloop, service: ScriptedService, tmp_path: Path) -> None:
    service.reads = 3
    file = tmp_path / "events.jsonl"
    assert learnloop("runs", "events", RUN_ID, "-o", str(file), "--url", service.url).exit_code == 0
    assert [json.loads(line)["seq"] for line in file.read_text().splitlines()] == [1, 2, 3]


def test_it_is_written_whatever_the_exit_code(learnloop: Learnloop, service: ScriptedService, tmp_path: Path) -> None:
    service.cancelled = True
    file = tmp_path / "run.json"
    assert learnloop("runs", "watch", RUN_ID, "-o", str(file), "--url", service.url).exit_code == 1
    assert json.loads(file.read_text())["status"] == "cancelled"


def test_a_plot_takes_the_old_name_of_the_option(
    learnloop: Learnloop, service: ScriptedService, tmp_path: Path
) -> None:
    file = tmp_path / "run.svg"
    ran = learnloop("runs", "plot", RUN_ID, "--out", str(file), "--url", service.url)
    assert (ran.exit_code, file.read_text()[:5]) == (0, "<svg ")
