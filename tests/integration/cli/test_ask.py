"""`learnloop ask` against an HTTP service."""

from tests.fakes.scripted_service import RUN_ID, ScriptedService
from tests.integration.cli.conftest import Learnloop


def test_asks_a_runs_agent(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("ask", "When is it?", "--run", RUN_ID, "--query-date", "2026-03-01", "--url", service.url)
    assert ran.exit_code == 0, ran.stderr
    assert service.asks == [{"question": "When is it?", "run_id": RUN_ID, "query_date": "2026-03-01"}]
    assert ran.stdout.splitlines()[:2] == ["14 March", "sources     tolu"]


def test_asks_in_the_form_of_any_environment(learnloop: Learnloop, service: ScriptedService) -> None:
    fields = ("-i", "article=bolt", "-i", "asked_on=2026-03-01", "--input", "most=3", "-i", "places=[a, 2026-03-02]")
    learnloop("ask", "--run", RUN_ID, *fields, "--url", service.url)
    task = {"article": "bolt", "asked_on": "2026-03-01", "most": 3, "places": ["a", "2026-03-02"]}
    assert service.asks == [{"run_id": RUN_ID, "input": task}]
    assert learnloop("ask", "--run", RUN_ID, "-i", "article", "--url", service.url).exit_code == 2


def test_asks_a_model_about_an_imported_inbox(learnloop: Learnloop, service: ScriptedService) -> None:
    ran = learnloop("ask", "When?", "--model", "learnloop/tiny", "--inbox", "acme", "--url", service.url, "--json")
    assert service.asks == [
        {
            "question": "When?",
            "model": "learnloop/tiny",
            "environment": {"name": "email_search", "config": {"inbox": "acme"}},
        }
    ]
    assert ran.json["answer"] is None


def test_needs_exactly_one_agent(learnloop: Learnloop) -> None:
    assert learnloop("ask", "When?").exit_code == 2
    assert learnloop("ask", "When?", "--run", RUN_ID, "--model", "m").exit_code == 2
