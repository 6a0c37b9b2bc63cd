"""A scripted service to talk to, and a way to run `learnloop` in this process."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from tests.fakes.scripted_service import ScriptedService, serving


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with serving(ScriptedService()) as running:
        yield running


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Stdout as the one JSON document that it must be."""
        return json.loads(self.stdout)


class Learnloop(Protocol):
    """Runs `learnloop` with these arguments."""

    def __call__(self, *arguments: str) -> Ran: ...


@pytest.fixture
def learnloop(monkeypatch: pytest.MonkeyPatch) -> Learnloop:
    monkeypatch.delenv("LEARNLOOP_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Ran:
        result = CliRunner().invoke(app, list(arguments))
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
