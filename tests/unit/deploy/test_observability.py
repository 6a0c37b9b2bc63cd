"""What watches the service: Prometheus' configuration, its alerts, and the dashboard."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.deploy.metric_names import ALERTS, CONFIG, FILES, RULE_TESTS, dashboard_panels, expressions, rules


def _promtool(*arguments: object) -> str:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    ran = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    assert f"{len(rules())} rules found" in _promtool("check", "rules", ALERTS)
    _promtool("check", "config", "--syntax-only", CONFIG)


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    _promtool("test", "rules", RULE_TESTS)


def test_prometheus_understands_what_the_dashboard_asks(tmp_path: Path) -> None:
    """Each expression as a rule, with what Grafana puts in for its variables."""
    expressions = [target["expr"] for panel in dashboard_panels() for target in panel.get("targets", ())]
    filled = [expression.replace("$__rate_interval", "1m").replace("$job", "learnloop") for expression in expressions]
    assert not any("$" in expression for expression in filled)
    recorded = [{"record": f"asked:{number}", "expr": expression} for number, expression in enumerate(filled)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    _promtool("check", "rules", file)


def test_the_rule_tests_are_about_all_alerts() -> None:
    """They count how many fire."""
    first, second = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    assert first["promql_expr_test"][0]["exp_samples"] == [{"value": 0}]
    assert second["promql_expr_test"][1]["exp_samples"] == [{"value": len(rules())}]
    fed = {re.match(r"\w+", series["series"])[0] for series in second["input_series"]}  # type: ignore[index]
    used = {name for rule in rules() for name in re.findall(r"\b(?:learnloop_\w+|up)\b(?=[{\[) ]|$)", rule["expr"])}
    assert used <= fed


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


def test_the_configuration_scrapes_the_job_that_the_alerts_are_about() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    assert [FILES / name for name in config["rule_files"]] == [ALERTS]
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert {job for rule in rules() for job in re.findall(r'job="(\w+)"', rule["expr"])} == jobs


def test_figures_that_are_the_same_everywhere_are_never_summed() -> None:
    """They come from the database and the engine; each process tells them."""
    names = "runs|queue|evaluations|releases|webhook_(?:deliveries|lag)|engine"
    shared = rf"learnloop_(?:{names})(?:_(?!ended|claimed)\w+)?[{{\[ )]"
    for expression in expressions():
        assert not re.search(rf"\bsum(?: by \([^)]*\))? ?\((?:rate\()?{shared}", expression), expression


def test_the_dashboard_has_a_place_and_a_title_for_each_panel() -> None:
    panels = dashboard_panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    occupied: set[tuple[int, int]] = set()
    for panel in panels:
        rectangle = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(rectangle["x"], rectangle["x"] + rectangle["w"])
            for y in range(rectangle["y"], rectangle["y"] + rectangle["h"])
        }
        assert not cells & occupied, panel["title"]
        assert rectangle["x"] + rectangle["w"] <= 24
        occupied |= cells
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert all('job="$job"' in target["expr"] for target in panel["targets"])
