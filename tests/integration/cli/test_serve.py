"""`learnloop serve` as a process of its own, and the other commands against it."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from learnloop_service.app.cli.service_process import free_port, own_service
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.app.processes.data_directory import DataDirectory
from tests.fakes.forked_learnloop import learnloop as forked_learnloop
from tests.integration.cli.conftest import Learnloop

NO_ENGINE = {"LEARNLOOP_ENGINE_URL": "http://127.0.0.1:9"}
"""Somebody else's: none of our own is started, whose imports take seconds."""


def _serve(data_dir: Path, port: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        forked_learnloop("serve", "--data-dir", str(data_dir), "--port", str(port)),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **NO_ENGINE, **environment},
    )


def _wait_until_up(process: subprocess.Popen[str], url: str) -> None:
    attempts = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, httpx.TransportError) and process.poll() is None),
        stop=stop_after_delay(60),
        wait=wait_fixed(0.05),
        reraise=True,
    )
    attempts(httpx.get, f"{url}/health/live", trust_env=False).raise_for_status()


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Like that of each test, for the service that they share."""
    with tempfile.TemporaryDirectory(prefix="learnloop-test-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def url(data_dir: Path) -> Iterator[str]:
    """A real service; stopped with SIGTERM, which must be a success."""
    port = free_port()
    process = _serve(data_dir, port, LEARNLOOP_LOG_LEVEL="error")
    try:
        _wait_until_up(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr


def test_an_empty_service_lists_no_runs(learnloop: Learnloop, url: str) -> None:
    assert learnloop("runs", "list", "--url", url, "--json").json == []
    assert learnloop("runs", "list", "--url", url).stdout == "no runs\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("runs", "show", "nope", "--json"), "learnloop: GET /runs/nope failed (404): There is no run 'nope'.\n"),
        (("runs", "cancel", "nope"), "(404)"),
        (("runs", "list", "--status", "asleep"), "query.status: Input should be"),
        (("train", "--environment", "chess"), "environment.name: Unknown environment 'chess'"),
        (("train", "--iterations", "0"), "iterations: must be at least 1 in a run without a warm_start"),
        (("train", "--judge", "nobody"), "judge.name: Unknown judge 'nobody'"),
        (("ask", "When?", "--run", "nope"), "(404)"),
    ],
)
def test_a_refusal_is_one_readable_line(
    learnloop: Learnloop, url: str, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = learnloop(*arguments, "--url", url)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert complaint in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_second_service_in_the_same_directory_is_refused(data_dir: Path, url: str) -> None:
    process = _serve(data_dir, free_port())
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{data_dir} is in use by" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"DATABASE_URL": "mysql://localhost/x"}, "DATABASE_URL"),
        ({"LEARNLOOP_LOG_FORMAT": "poem"}, "LEARNLOOP_LOG_FORMAT"),
    ],
)
def test_a_bad_setting_ends_the_start(tmp_path: Path, environment: dict[str, str], complaint: str) -> None:
    process = _serve(tmp_path, free_port(), **environment)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.splitlines()[-1].startswith("learnloop: ")
    assert complaint in stderr
    assert "Traceback" not in stderr


def test_a_run_of_its_own_says_why_its_service_does_not_start(
    learnloop: Learnloop, data_dir: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*next(iter(NO_ENGINE.items())))
    ran = learnloop("train", "--data-dir", str(data_dir))
    assert ran.exit_code == 1
    assert "the service exited during startup" in ran.stderr
    assert f"{data_dir} is in use by" in ran.stderr


def test_a_data_directory_that_cannot_be_made_is_said(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = learnloop("train", "--data-dir", str(tmp_path / "file" / "data"))
    assert ran.exit_code == 1
    assert "cannot use the data directory" in ran.stderr


def test_a_service_that_does_not_start_says_why_and_nothing_of_the_one_before(tmp_path: Path) -> None:
    running = DataDirectory(tmp_path)
    (tmp_path / "service.log").write_text("a line of the service before\n")
    with pytest.raises(Failure) as raised, own_service(tmp_path, waiting=lambda what: None, variables=NO_ENGINE):
        pass
    running.release()
    assert "is in use by another service" in str(raised.value)
    assert "a line of the service before" not in str(raised.value)
