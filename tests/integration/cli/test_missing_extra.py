"""Without the extra `embedded`, commands that need an engine of their own say so in one line, and nothing else does."""

from pathlib import Path

import pytest

from learnloop_service.app.cli.serve import require_engine
from learnloop_service.app.cli.terminal import Failure
from tests.integration.cli.conftest import Learnloop


@pytest.fixture(autouse=True)
def without_the_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("learnloop_service.training.engine_libraries._MODULES", ("no_torch_here",))
    monkeypatch.chdir(tmp_path)  # no .env of a developer
    for name in ("LEARNLOOP_ENGINE_URL", "LEARNLOOP_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "command",
    [
        ("serve",),
        ("worker",),
        ("demo",),
        ("train",),
        ("eval", "--run", "R"),
        ("engine",),
        ("bases", "add", "mine", "folder"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_it_says_how_to_add_it(command: tuple[str, ...], learnloop: Learnloop) -> None:
    ran = learnloop(*command)
    assert (ran.exit_code in (1, 2), ran.stdout) == (True, "")
    [line] = ran.stderr.splitlines()
    assert "the engine needs no_torch_here (the extra `embedded`), not installed here. To add it: " in line


def test_preflight_names_it(learnloop: Learnloop) -> None:
    ran = learnloop("preflight", "--json")
    assert ran.exit_code == 1
    [engine] = [check for check in ran.json if check["name"] == "engine"]
    assert engine["state"] == "failed"


@pytest.mark.parametrize(
    ("variable", "value"), [("LEARNLOOP_ENGINE_URL", "http://engine:8001"), ("LEARNLOOP_BACKEND", "serverless")]
)
def test_a_service_without_an_engine_of_its_own_starts(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Failure):
        require_engine()
    monkeypatch.setenv(variable, value)
    require_engine()


def test_an_example_is_found_from_any_directory_unless_there_is_a_file_of_that_name(
    learnloop: Learnloop, tmp_path: Path
) -> None:
    read = ("train", "configs/smoke.yaml", "--detach", "--url", "http://127.0.0.1:9")
    assert "reading " in learnloop(*read).stderr
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "smoke.yaml").write_text("iterations: 1")
    assert "reading " not in learnloop(*read).stderr
    missing = learnloop("train", "configs/none.yaml")
    assert missing.exit_code == 2
    assert "configs/pipelines/mailbox.yaml" in missing.stderr
