"""What `learnloop demo` reports, from services whose runs went as scripted."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.demo.document import demo_document
from learnloop_service.app.cli.demo.jobs import DemoJob, demo_job
from learnloop_service.app.cli.demo.report import print_figures, print_introduction, print_links, print_report
from learnloop_service.app.cli.terminal import Terminal
from tests.fakes.scripted_sales import HOME, HOSTILE, SCENARIOS, ScriptedSales
from tests.fakes.scripted_service import REFERENCES, RUN_ID, ScriptedService, serving
from tests.integration.cli.conftest import Learnloop

FIGURES = {
    "held_out": {
        "split": "test",
        "scenarios": 64,
        "sampled": {"before": 0.25, "after": 0.75},
        "greedy": {"before": 0.125, "after": 0.5},
    },
    "mean_reward": {"before": 0.125, "after": 0.625},
    "iterations": 3,
    "seconds": 20.0,
    "rollouts_per_s": 9.6,
    "tokens_per_s": 600.0,
}


@pytest.fixture
def sales() -> Iterator[ScriptedSales]:
    with serving(ScriptedSales()) as running:
        assert isinstance(running, ScriptedSales)
        yield running


def _run(scripted: ScriptedService) -> dict[str, Any]:
    scripted.reads = scripted.iterations
    with Service(scripted.url) as service:
        run: dict[str, Any] = service.run(RUN_ID)
    return run


def _document(scripted: ScriptedService, job: DemoJob) -> dict[str, Any]:
    run = _run(scripted)
    with Service(scripted.url) as service:
        document: dict[str, Any] = demo_document(run, job.examples(service, run), total_s=25.0)
    return document


def _report(scripted: ScriptedService, job: DemoJob, **console_settings: Any) -> str:
    document = _document(scripted, job)
    console = Terminal(file=(text := StringIO()), width=80, **console_settings)
    print_introduction(console, job.introduction, 3)
    print_figures(console, _run(scripted), document)
    job.print_examples(console, document)
    print_links(console, document, "http://127.0.0.1:8000", Path("demo"))
    print_report(console, Path("demo/report.html"))
    return text.getvalue()


def test_the_document_has_the_figures_of_the_run(service: ScriptedService) -> None:
    document = _document(service, demo_job("email_search"))
    assert {name: document[name] for name in FIGURES} == FIGURES


def test_the_same_three_questions_go_to_both_agents(service: ScriptedService) -> None:
    answers = _document(service, demo_job("email_search"))["answers"]
    assert [answer["scenario_id"] for answer in answers] == list(REFERENCES)[:3]
    assert [(answer["base"]["correct"], answer["trained"]["correct"]) for answer in answers] == [(False, True)] * 3
    base, trained = service.asked[:2]
    assert base.pop("model") == "learnloop/tiny"
    assert trained.pop("run_id") == RUN_ID
    assert base.pop("environment")["name"] == "email_search"
    assert base == trained


def test_the_report_fits_80_columns_and_a_pipe(service: ScriptedService) -> None:
    job = demo_job("email_search")
    report = _report(service, job)
    assert "\x1b" not in report
    assert max(map(len, report.splitlines())) <= 100
    assert "+50" in report
    said = " ".join(report.split())
    assert "Learned: held-out success rose from 25% to 75%, +50 points" in said
    assert report.count("wrong") == report.count("right") == 3
    assert "/trajectories/trajectory-1" in report
    assert report.endswith("\n  demo/report.html\n")


def test_an_unknown_environment_is_introduced_by_its_name() -> None:
    assert "chess" in demo_job("chess").introduction.format(environment="chess")


# The sales agent


def test_both_demos_have_the_same_figures(service: ScriptedService, sales: ScriptedSales) -> None:
    one, other = _document(service, demo_job("email_search")), _document(sales, demo_job("sales_email"))
    assert {name: other[name] for name in FIGURES} == FIGURES
    assert set(one) <= set(other)


def test_the_same_three_prospects_go_to_both_agents(sales: ScriptedSales) -> None:
    emails = _document(sales, demo_job("sales_email"))["emails"]
    assert [each["scenario_id"] for each in emails] == [scenario.id for scenario in SCENARIOS[:3]]
    assert [each["task"] for each in emails] == [scenario.task for scenario in SCENARIOS[:3]]
    assert [each["trained"]["email"] for each in emails] == [each.reference["email"] for each in SCENARIOS[:3]]
    assert [each["trained"]["grounded"] for each in emails] == [True] * 3
    assert [each["base"]["email"] is None for each in emails] == [False, True, True]
    assert not any(emails[0]["base"]["checks"].values())
    assert sales.asked[0] == {
        "model": "learnloop/tiny",
        "environment": {"name": "sales_email", "config": {}},
        **SCENARIOS[0].task,
    }
    assert sales.asked[1] == {"run_id": RUN_ID, **SCENARIOS[0].task}


def test_nodes_are_ranked_as_the_agent_is_shown_them(sales: ScriptedSales) -> None:
    scores = _document(sales, demo_job("sales_email"))["node_scores"]
    graph, nodes = HOME.graph, scores["nodes"]
    assert scores["graph"] == HOME.key
    assert {node["id"] for node in nodes} == set(graph.nodes)
    assert [node["rank"]["after"] for node in nodes] == list(range(1, len(nodes) + 1))
    assert [node["leads_to_product"] for node in nodes[: len(HOME.path)]] == [True] * len(HOME.path)
    most_popular = max(graph.nodes, key=graph.popularity.__getitem__)
    [hub] = [node for node in nodes if node["id"] == most_popular]
    assert hub["rank"] == {"before": 1, "after": len(HOME.path) + 1}
    assert hub["score"] == {"before": 1.0, "after": pytest.approx(0.7)}
    assert hub["content"] == graph.nodes[most_popular].content
    assert most_popular in scores["fallen"]
    assert set(scores["risen"]) <= set(HOME.path)
    climbs = {node["id"]: node["rank"]["before"] - node["rank"]["after"] for node in nodes}
    assert [climbs[id] for id in scores["risen"]] == sorted((c for c in climbs.values() if c > 0), reverse=True)
    assert [climbs[id] for id in scores["fallen"]] == sorted(c for c in climbs.values() if c < 0)


def test_the_report_shows_emails_and_tells_what_moved(sales: ScriptedSales) -> None:
    job = demo_job("sales_email")
    report = _report(sales, job)
    words = " ".join(report.split())
    assert max(map(len, report.splitlines())) <= 100
    assert report.count("grounded") == 3
    assert report.count("no email") == 2
    for task in (scenario.task for scenario in SCENARIOS[:3]):
        assert f"{task['prospect']}, {task['role']}, at {task['company']}: {task['goal']}" in words
    assert report.count("cites ghost") == 1
    count = len(HOME.path)
    assert f"Of the {count} nodes that lead to the product, {count} are now in the top {count}" in words
    assert "Rose most:" in words
    assert "Fell most:" in words
    assert "/trajectories/trained-0" in report


@pytest.mark.parametrize("settings", [{}, {"markup": False}, {"force_terminal": True, "color_system": "standard"}])
def test_what_an_email_says_is_shown_as_it_is(sales: ScriptedSales, settings: dict[str, Any]) -> None:
    job = demo_job("sales_email")
    report = _report(sales, job, **settings)
    assert HOSTILE not in report
    assert "\x1b[31m<" not in report
    for piece in ("[bold", "red]Hello[/bold", "?[31m<script>alert(1)</script>"):
        assert piece in report


def test_the_length_of_a_demo_is_the_environments(learnloop: Learnloop) -> None:
    shown = " ".join(learnloop("demo", "--help").stdout.replace("│", " ").split())
    assert "[default: depends on the environment]" in shown
    assert all(demo_job(name).iterations >= 1 for name in ("email_search", "sales_email", "chess"))
