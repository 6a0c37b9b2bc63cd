"""`learnloop runs` against an HTTP service."""

import re

import pytest

from app.domain.run_state import RunStatus
from tests.fakes.scripted_service import RUN_ID, ScriptedService
from tests.integration.cli.conftest import Learnloop


def test_list_follows_cursors_up_to_the_limit(learnloop: Learnloop, service: ScriptedService) -> None:
    assert len(learnloop("runs", "list", "--url", service.url, "--json").json) == 2
    assert len(learnloop("runs", "list", "--url", service.url, "--json", "--limit", "1").json) == 1


def test_list_is_a_table_of_80_columns(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("runs", "list", "--url", service.url)
    assert RUN_ID in ran.stdout
    assert "running" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_show_gives_before_and_after(learnloop: Learnloop, service: ScriptedService) -> None:
    service.reads = service.iterations
    shown = learnloop("runs", "show", RUN_ID, "--url", service.url).stdout
    assert re.search(r"success, sampled +25% +75%", shown)
    assert "3 of 3 in 20 s" in shown


def test_watch_prints_a_line_an_iteration_on_stderr(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("runs", "watch", RUN_ID, "--url", service.url)
    assert ran.exit_code == 0
    assert [line.split()[1] for line in ran.stderr.splitlines() if line.startswith("iteration")] == ["1", "2", "3"]
    assert f"run {RUN_ID} is completed" in ran.stdout
    assert "\x1b" not in ran.stdout + ran.stderr


def test_watch_of_a_failed_run_exits_with_1_and_says_why(learnloop: Learnloop, service: ScriptedService) -> None:
    service.ends_as = RunStatus.FAILED
    ran = learnloop("runs", "watch", RUN_ID, "--url", service.url)
    assert ran.exit_code == 1
    assert "the engine ended" in ran.stdout


def test_cancel_waits_for_the_end(learnloop: Learnloop, service: ScriptedService) -> None:
    service.ends_as = None
    assert learnloop("runs", "cancel", RUN_ID, "--url", service.url, "--json").json["status"] == "cancelled"


def test_an_unknown_run_is_one_readable_line(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("runs", "show", "nope", "--url", service.url, "--json")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == "learnloop: GET /runs/nope failed (404): There is no run 'nope'.\n"


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "", "http://"])
def test_a_url_that_is_none_is_refused(learnloop: Learnloop, url: str) -> None:
    ran = learnloop("runs", "list", "--url", url)
    assert ran.exit_code == 1
    assert "is not the URL of a service" in ran.stderr


def test_no_service_says_how_to_start_one(learnloop: Learnloop) -> None:
    ran = learnloop("runs", "list", "--url", "http://127.0.0.1:9")
    assert ran.exit_code == 1
    assert "learnloop serve" in ran.stderr
    assert ran.stderr.count("\n") == 1
