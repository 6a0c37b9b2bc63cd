"""What `learnloop demo` reports, from a service whose run went as scripted."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from app.cli.client import Service
from app.cli.demo_figures import ask_both, demo_document, held_out_scenarios
from app.cli.demo_report import print_answers, print_figures, print_introduction, print_links
from tests.fakes.scripted_service import REFERENCES, RUN_ID, ScriptedService


def _document(scripted: ScriptedService) -> dict[str, object]:
    scripted.reads = scripted.iterations
    with Service(scripted.url) as service:
        run = service.run(RUN_ID)
        scenarios = held_out_scenarios(service, RUN_ID, 3)
        answers = [ask_both(service, run, scenario) for scenario in scenarios]
    document: dict[str, object] = demo_document(run, answers, total_s=25.0)
    return document


def test_the_document_has_the_figures_of_the_run(service: ScriptedService) -> None:
    document = _document(service)
    assert document["held_out"] == {
        "split": "test",
        "scenarios": 64,
        "sampled": {"before": 0.25, "after": 0.75},
        "greedy": {"before": 0.125, "after": 0.5},
    }
    assert document["mean_reward"] == {"before": 0.125, "after": 0.625}
    assert (document["iterations"], document["seconds"], document["rollouts_per_s"]) == (3, 20.0, 9.6)
    assert document["tokens_per_s"] == 600.0


def test_the_same_three_questions_go_to_both_agents(service: ScriptedService) -> None:
    answers = _document(service)["answers"]
    assert isinstance(answers, list)
    assert [answer["scenario_id"] for answer in answers] == list(REFERENCES)[:3]
    assert [(answer["base"]["correct"], answer["trained"]["correct"]) for answer in answers] == [(False, True)] * 3
    base, trained = service.asked[:2]
    assert base.pop("model") == "learnloop/tiny"
    assert trained.pop("run_id") == RUN_ID
    assert base.pop("environment")["name"] == "email_search"
    assert base == trained


def test_the_report_fits_80_columns_and_a_pipe(service: ScriptedService) -> None:
    document = _document(service)
    console = Console(file=(text := StringIO()), width=80, highlight=False, markup=False)
    print_introduction(console, "email_search", 3)
    print_figures(console, document)
    print_answers(console, document)
    print_links(console, document, service.url, Path("demo"))
    report = text.getvalue()
    assert "\x1b" not in report
    assert max(map(len, report.splitlines())) <= 100
    assert "+50" in report
    assert report.count("wrong") == report.count("right") == 3
