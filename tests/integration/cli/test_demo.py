"""What `learnloop demo` reports, from services whose runs went as scripted."""

from pathlib import Path

from learnloop_service.app.cli.demo.jobs import demo_job
from tests.demos import FIGURES, shown_document, shown_report
from tests.fakes.scripted_service import REFERENCES, RUN_ID, ScriptedService
from tests.integration.cli.conftest import Learnloop


def test_the_document_has_the_figures_of_the_run(service: ScriptedService) -> None:
    document = shown_document(service, demo_job("email_search"))
    assert {name: document[name] for name in FIGURES} == FIGURES


def test_the_same_three_questions_go_to_both_agents(service: ScriptedService) -> None:
    answers = shown_document(service, demo_job("email_search"))["answers"]
    assert [answer["scenario_id"] for answer in answers] == list(REFERENCES)[:3]
    assert [(answer["base"]["correct"], answer["trained"]["correct"]) for answer in answers] == [(False, True)] * 3
    base, trained = service.asks[:2]
    assert base.pop("model") == "learnloop/tiny"
    assert trained.pop("run_id") == RUN_ID
    assert base.pop("environment")["name"] == "email_search"
    assert base == trained


def test_the_report_fits_80_columns_and_a_pipe(service: ScriptedService) -> None:
    job = demo_job("email_search")
    report = shown_report(service, job)
    assert "\x1b" not in report
    assert max(map(len, report.splitlines())) <= 100
    assert "+50" in report
    text = " ".join(report.split())
    assert "Learned: held-out success rose from 25% to 75%, +50 points" in text
    assert report.count("wrong") == report.count("right") == 3
    assert "/trajectories/trajectory-1" in report
    assert report.endswith("\n  demo/report.html\n")


def test_an_unknown_environment_is_refused_before_anything_starts(learnloop: Learnloop, tmp_path: Path) -> None:
    ran = learnloop("demo", "--environment", "chess", "--data-dir", str(tmp_path / "data"))
    assert ran.exit_code == 1
    assert "Unknown environment 'chess'. Available: agent, answers," in " ".join(ran.stderr.split())
    assert not (tmp_path / "data").exists()


def test_an_environment_without_a_demo_is_introduced_by_its_name() -> None:
    assert "chess" in demo_job("chess").introduction.format(environment="chess")


def test_the_length_of_a_demo_is_the_environments(learnloop: Learnloop) -> None:
    help_text = " ".join(learnloop("demo", "--help").stdout.replace("│", " ").split())
    assert "[default: depends on the environment]" in help_text
    assert all(demo_job(name).iterations >= 1 for name in ("email_search", "chess"))
