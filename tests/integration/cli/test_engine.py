"""`learnloop engine` runs the engine alone, with the engine's own flags."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from learnloop_service.training.engine_flags import KEY_VARIABLE, parser
from tests.fakes.engine_process import ROOT, EngineProcess
from tests.integration.cli.conftest import Learnloop


def ran(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`learnloop engine` with these flags, in a terminal of 80 columns."""
    command = [sys.executable, "-m", "learnloop_service.app.cli", "engine", *arguments]
    environment = {**os.environ, "COLUMNS": "80", **variables}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def test_its_help_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    helped = ran("--help")
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout == parser("learnloop engine").format_help()


def test_every_flag_is_explained() -> None:
    flags = parser("learnloop engine")
    assert [action.option_strings for action in flags._actions if not action.help] == []


def test_nothing_heavy_is_imported_for_it() -> None:
    code = "import sys, learnloop_service.app.cli.engine, learnloop_service.training.engine.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data-dir", "x", "--treads", "2"], "unrecognized arguments: --treads 2"),
        (["--data-dir", "x", "--threads", "0"], "argument --threads: must be at least 1"),
        (["--data-dir"], "argument --data-dir: expected one argument"),
    ],
)
def test_bad_flags_are_reported_as_the_commands_own(learnloop: Learnloop, arguments: list[str], said: str) -> None:
    failed = learnloop("engine", *arguments)
    assert failed.exit_code == 2
    assert failed.stderr.startswith("usage: learnloop engine")
    assert said in failed.stderr


@pytest.mark.parametrize("variables", [{}, {KEY_VARIABLE: ""}])
def test_an_engine_that_others_reach_needs_a_key(variables: dict[str, str]) -> None:
    """In a process of its own, because the engine's log is set up by then."""
    failed = ran("--data-dir", "x", "--host", "0.0.0.0", **variables)
    assert failed.returncode == 2
    assert failed.stderr.startswith("--host 0.0.0.0: others can reach the engine there, so it needs a key.")
    assert KEY_VARIABLE in failed.stderr
    assert "--api-key-env" in failed.stderr


def test_the_key_is_read_from_the_usual_variable_and_the_flag_wins(tmp_path: Path) -> None:
    keys = {KEY_VARIABLE: "usual-key", "ANOTHER_KEY": "another-key"}
    for flags, valid in ((), "usual-key"), (("--api-key-env", "ANOTHER_KEY"), "another-key"):
        with EngineProcess(
            tmp_path, *flags, command=("learnloop_service.app.cli", "engine"), environment=keys
        ) as engine:
            statuses = {
                key: httpx.get(
                    f"{engine.base_url}/models", headers={"authorization": f"Bearer {key}"}, timeout=30, trust_env=False
                ).status_code
                for key in ("none", *keys.values())
            }
        assert statuses == {key: 200 if key == valid else 401 for key in statuses}


def test_it_serves_until_it_is_stopped(tmp_path: Path) -> None:
    with EngineProcess(tmp_path, command=("learnloop_service.app.cli", "engine")) as engine:
        models = httpx.get(f"{engine.base_url}/models", timeout=30, trust_env=False).json()
        assert "learnloop/tiny" in [model["id"] for model in models["data"]]
        assert engine.stop() == 0
