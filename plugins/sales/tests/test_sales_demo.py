"""What the demo of the sales agent reports, from services whose runs went as scripted."""

from collections.abc import Iterator
from typing import Any

import pytest

from learnloop_service.app.cli.demo.jobs import demo_job
from tests.demos import FIGURES, shown_document, shown_report
from tests.fakes.scripted_sales import HOME, HOSTILE, SCENARIOS, ScriptedSales
from tests.fakes.scripted_service import RUN_ID, ScriptedService, serving


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with serving(ScriptedService()) as running:
        yield running


@pytest.fixture
def sales() -> Iterator[ScriptedSales]:
    with serving(ScriptedSales()) as running:
        assert isinstance(running, ScriptedSales)
        yield running


def test_both_demos_have_the_same_figures(service: ScriptedService, sales: ScriptedSales) -> None:
    one, other = shown_document(service, demo_job("email_search")), shown_document(sales, demo_job("sales_email"))
    assert {name: other[name] for name in FIGURES} == FIGURES
    assert set(one) <= set(other)


def test_the_same_three_prospects_go_to_both_agents(sales: ScriptedSales) -> None:
    emails = shown_document(sales, demo_job("sales_email"))["emails"]
    assert [email["scenario_id"] for email in emails] == [scenario.id for scenario in SCENARIOS[:3]]
    assert [email["task"] for email in emails] == [scenario.task for scenario in SCENARIOS[:3]]
    assert [email["trained"]["email"] for email in emails] == [
        scenario.reference["email"] for scenario in SCENARIOS[:3]
    ]
    assert [email["trained"]["grounded"] for email in emails] == [True] * 3
    assert [email["base"]["email"] is None for email in emails] == [False, True, True]
    assert not any(emails[0]["base"]["checks"].values())
    assert sales.asks[0] == {
        "model": "learnloop/tiny",
        "environment": {"name": "sales_email", "config": {}},
        **SCENARIOS[0].task,
    }
    assert sales.asks[1] == {"run_id": RUN_ID, **SCENARIOS[0].task}


def test_nodes_are_ranked_as_the_agent_is_shown_them(sales: ScriptedSales) -> None:
    scores = shown_document(sales, demo_job("sales_email"))["node_scores"]
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
    report = shown_report(sales, job)
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
    report = shown_report(sales, job, **settings)
    assert HOSTILE not in report
    assert "\x1b[31m<" not in report
    for piece in ("[bold", "red]Hello[/bold", "?[31m<script>alert(1)</script>"):
        assert piece in report
