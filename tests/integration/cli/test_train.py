"""`learnloop train` against an HTTP service."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from learnloop_service.app.domain.run_state import RunStatus
from tests.fakes.forked_learnloop import learnloop as forked_learnloop
from tests.fakes.scripted_service import RUN_ID, ScriptedService
from tests.integration.cli.conftest import Learnloop


def test_flags_win_over_the_file(learnloop: Learnloop, service: ScriptedService, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("environment: {name: email_search, config: {inbox: acme}}\niterations: 3\nseed: 5\n")
    settings = ("--set", "evaluation.every=2", "--set", "temperature=0.9")
    ran = learnloop("train", str(file), "--iterations", "4", "--model", "m", *settings, "--url", service.url)
    assert ran.exit_code == 0, ran.stderr
    assert service.posted == [
        {
            "environment": {"name": "email_search", "config": {"inbox": "acme"}},
            "iterations": 4,
            "seed": 5,
            "model": {"name": "m"},
            "evaluation": {"every": 2},
            "temperature": 0.9,
        }
    ]


def test_a_graph_comes_from_a_file(learnloop: Learnloop, service: ScriptedService, tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    for text in ('[{"id": "ü"}]', '{"graph": [{"id": "ü"}], "iterations": 9}'):
        file.write_text(text, encoding="utf-8")
        assert learnloop("train", "--graph", str(file), "--detach", "--url", service.url).exit_code == 0
    assert service.posted == [{"graph": [{"id": "ü"}]}] * 2
    for text in ("{}", "[", "7", "[" * 100_000):
        file.write_text(text)
        assert learnloop("train", "--graph", str(file), "--detach", "--url", service.url).exit_code == 2


def test_json_is_the_run_and_a_failed_one_exits_with_1(learnloop: Learnloop, service: ScriptedService) -> None:
    service.ends_as = RunStatus.FAILED
    ran = learnloop("train", "--url", service.url, "--json")
    assert ran.exit_code == 1
    assert (ran.json["run_id"], ran.json["status"]) == (RUN_ID, "failed")


def test_detach_only_posts(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("train", "--detach", "--url", service.url)
    assert (ran.exit_code, service.reads) == (0, 0)
    assert f"learnloop runs watch {RUN_ID}" in ran.stdout
    assert f"watch it in a browser: {service.url}/ui/runs/{RUN_ID}\n" in ran.stdout
    assert "36 before training, 1,280 in training, 120 afterwards; about 4:10, as the last run" in " ".join(
        ran.stdout.split()
    )


def test_the_address_of_the_page_is_on_a_line_of_its_own(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("train", "--url", service.url)
    assert f"watch it in a browser: {service.url}/ui/runs/{RUN_ID}" in ran.stderr.splitlines()


def test_every_wrong_field_is_named(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("train", "--iterations", "0", "--set", "colour=red", "--url", service.url)
    assert ran.exit_code == 1
    assert "iterations: must be at least 1 in a run without a warm_start" in ran.stderr
    assert "colour: Unknown field. Known: name, graph, depth, environment" in ran.stderr
    assert service.posted == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- 1\n- 2\n", "must contain the fields"),
        ("a: [", "cannot read"),
        ("\x00", "cannot read"),
        ("1: 2", "must contain"),
    ],
)
def test_a_file_that_is_no_run_is_a_usage_error(
    learnloop: Learnloop, tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    ran = learnloop("train", str(file), "--url", "http://127.0.0.1:9")
    assert ran.exit_code == 2
    assert complaint in " ".join(ran.stderr.replace("│", " ").split())


@pytest.mark.parametrize("arguments", [("--set", "x"), ("--set", ".a=1"), ("--set", "seed=["), ("--detach",)])
def test_usage_errors(learnloop: Learnloop, arguments: tuple[str, ...]) -> None:
    assert learnloop("train", *arguments).exit_code == 2


def test_a_setting_below_a_plain_value_is_a_usage_error(learnloop: Learnloop) -> None:
    assert learnloop("train", "--set", "seed=1", "--set", "seed.x=2", "--url", "http://127.0.0.1:9").exit_code == 2


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_run(service: ScriptedService, stop: signal.Signals) -> None:
    service.ends_as = None
    process = subprocess.Popen(
        forked_learnloop("train", "--url", service.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        # A shell that started the tests in its background lets its children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert service.being_read.wait(60)
    process.send_signal(stop)
    _, stderr = process.communicate(timeout=60)
    assert service.cancelled
    assert process.returncode == 130
    assert f"run {RUN_ID} is cancelled" in stderr
    assert "Traceback" not in stderr
