"""`learnloop runs` against an HTTP service."""

import re
from pathlib import Path

import pytest

from learnloop_service.app.domain.run_state import RunStatus
from tests.fakes.scripted_service import RUN_ID, TRAJECTORY, ScriptedService
from tests.fonts import needs_font
from tests.integration.cli.conftest import Learnloop


def test_list_follows_cursors_up_to_the_limit(learnloop: Learnloop, service: ScriptedService) -> None:
    assert len(learnloop("runs", "list", "--url", service.url, "--json").json) == 2
    assert len(learnloop("runs", "list", "--url", service.url, "--json", "--limit", "1").json) == 1


def test_list_is_a_table_of_80_columns(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("runs", "list", "--url", service.url)
    assert RUN_ID in ran.stdout
    assert "running" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_list_show_and_watch_say_whether_the_run_learned(learnloop: Learnloop, service: ScriptedService) -> None:
    early = learnloop("runs", "list", "--url", service.url).stdout
    assert "  Too early to say: held-out success was 25% before training" in early
    watched = learnloop("runs", "watch", RUN_ID, "--url", service.url)
    sentence = "Learned: held-out success rose from 25% to 75%, +50 points (95% interval"
    assert sum(line.startswith(sentence) for line in watched.stderr.splitlines()) == 1
    assert sentence in " ".join(watched.stdout.split())
    assert sentence in " ".join(learnloop("runs", "show", RUN_ID, "--url", service.url).stdout.split())
    listed = learnloop("runs", "list", "--url", service.url).stdout
    assert "3/3 25% -> 75% 21 Nov " in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert "  Learned: held-out success rose from 25% to 75%" in listed


def test_show_gives_before_and_after(learnloop: Learnloop, service: ScriptedService) -> None:
    service.reads = service.iterations
    printed = learnloop("runs", "show", RUN_ID, "--url", service.url).stdout
    assert re.search(r"success, sampled +25% +75%", printed)
    assert "3 of 3 in 20 s" in printed


def test_watch_prints_a_line_an_iteration_on_stderr(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("runs", "watch", RUN_ID, "--url", service.url)
    assert ran.exit_code == 0
    assert [line.split()[1] for line in ran.stderr.splitlines() if line.startswith("iteration")] == ["1", "2", "3"]
    assert f"run {RUN_ID} is completed" in ran.stdout
    assert "\x1b" not in ran.stdout + ran.stderr


def test_watch_tells_what_happened_and_waits_for_a_service_that_restarts(
    learnloop: Learnloop, service: ScriptedService
) -> None:
    service.away_at = 2
    ran = learnloop("runs", "watch", RUN_ID, "--url", service.url)
    assert ran.exit_code == 0
    lines = ran.stderr.splitlines()
    assert sum("run.released" in line for line in lines) == 1
    assert not any("phase.completed" in line for line in lines)
    (waiting,) = [line for line in lines if line.startswith("waiting for the service")]
    assert "The database is unreachable" in waiting


@pytest.mark.parametrize(
    ("name", "begins"), [("run.svg", b"<svg "), pytest.param("deep/run.PNG", b"\x89PNG", marks=needs_font)]
)
def test_plot_draws_the_kind_that_the_name_says(
    learnloop: Learnloop, service: ScriptedService, tmp_path: Path, name: str, begins: bytes
) -> None:
    service.reads = service.iterations
    out = tmp_path / name
    ran = learnloop("runs", "plot", RUN_ID, "-o", str(out), "--url", service.url)
    assert (ran.exit_code, ran.stdout) == (0, f"wrote {out}\n")
    assert out.read_bytes().startswith(begins)


def test_plot_of_another_kind_or_to_an_impossible_place_is_refused(
    learnloop: Learnloop, service: ScriptedService, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for out, message in (("run.pdf", "ends neither with .svg nor with .png"), ("file/run.svg", "cannot write")):
        ran = learnloop("runs", "plot", RUN_ID, "-o", str(tmp_path / out), "--url", service.url)
        assert ran.exit_code == 1
        assert message in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_trajectory_is_shown_with_its_calls_and_its_verdict(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("trajectories", "show", TRAJECTORY.id, "--url", service.url)
    assert ran.exit_code == 0
    lines = ran.stdout.splitlines()
    assert "  You answer [bold]questions[/bold]." in lines
    assert "  When??[31m" in lines  # a control character of whoever wrote it
    assert '  search_inbox({"keywords": ["x"]})' in lines
    assert "success     no: no source cited; expected [b]pebro[/b]?[31m" in lines
    assert "score       0.75   (agreement 1.00)" in lines
    assert "judge       The answer agrees with the reference." in lines
    assert "reward      0.80   (answer 1.00, turns -0.20)" in lines
    assert "advantage   -0.50" in lines
    assert lines[lines.index("history 2") :][:4] == ["history 2", "", "user", "  Summarise."]
    assert "(5,000 characters; --full shows all)" in ran.stdout
    full = learnloop("trajectories", "show", TRAJECTORY.id, "--full", "--url", service.url).stdout
    assert "y" * 5_000 in full
    document = learnloop("trajectories", "show", TRAJECTORY.id, "--json", "--url", service.url).json
    assert document["messages"] == TRAJECTORY.messages
    assert document["advantage"] == -0.5


def test_what_an_agent_wrote_is_not_obeyed_by_the_terminal(
    learnloop: Learnloop, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, honest = "said \x1b]0;owned\x07\x9b2J\u202etxt", ScriptedService.run
    details = {"error": hostile, "warnings": [hostile], "wait_reason": hostile}
    monkeypatch.setattr(ScriptedService, "run", lambda self: honest(self).model_copy(update=details))
    for arguments in (("show", RUN_ID), ("watch", RUN_ID), ("show", hostile), ("list", "--status", hostile)):
        ran = learnloop("runs", *arguments, "--url", service.url)
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(ran.stdout + ran.stderr), arguments
    printed = learnloop("runs", "show", RUN_ID, "--url", service.url)
    assert "said ?]0;owned" in printed.stdout
    document = learnloop("runs", "show", RUN_ID, "--json", "--url", service.url)
    assert document.json["error"] == hostile
    assert not {"\x1b", "\x9b", "\u202e"} & set(document.stdout)


@pytest.mark.parametrize("id", ["nope", "../runs", "a b", "\u202e"])
def test_an_unknown_trajectory_is_one_readable_line(learnloop: Learnloop, service: ScriptedService, id: str) -> None:
    ran = learnloop("trajectories", "show", id, "--url", service.url)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith("learnloop: there is no trajectory")
    assert ran.stderr.count("\n") == 1


def test_watch_of_a_failed_run_exits_with_1_and_says_why(learnloop: Learnloop, service: ScriptedService) -> None:
    service.ends_as = RunStatus.FAILED
    ran = learnloop("runs", "watch", RUN_ID, "--url", service.url)
    assert ran.exit_code == 1
    assert "the engine ended" in ran.stdout


def test_cancel_waits_for_the_end(learnloop: Learnloop, service: ScriptedService) -> None:
    service.ends_as = None
    assert learnloop("runs", "cancel", RUN_ID, "--url", service.url, "--json").json["status"] == "cancelled"


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


def test_a_service_that_does_not_run_is_one_line_that_says_how_to_start_it(learnloop: Learnloop) -> None:
    ran = learnloop("runs", "list", "--url", "http://127.0.0.1:9")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == (
        "learnloop: no service is reachable at http://127.0.0.1:9: nothing listens there; start one with "
        "`learnloop serve`, or give --url\n"
    )
