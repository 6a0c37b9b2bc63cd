"""The metrics that the service offers, and those that docs, dashboard and alerts name."""

import json
import re
from collections.abc import Iterator

import yaml

from learnloop_service.environment.json_type import Json
from tests.fakes.engine_process import ROOT

FILES = ROOT / "deploy" / "observability"
ALERTS, RULE_TESTS, CONFIG = (FILES / name for name in ("alerts.yml", "alerts.test.yml", "prometheus.yml"))
_METRIC = re.compile(r"\b(?:learnloop|process)_[a-z_]+\b")


def used_metrics() -> set[str]:
    """The names that alerts and dashboard ask Prometheus for."""
    return {name for expression in expressions() for name in _METRIC.findall(expression)}


def offered_metrics(page: str) -> set[str]:
    """The names of all series that there can be, by a scrape."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def documented_metrics() -> set[str]:
    """The metrics of the table in the documentation."""
    text = (ROOT / "docs" / "observability.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in dashboard_panels():
        for target in panel.get("targets", ()):
            yield target["expr"]


def rules() -> list[Json]:
    """The alerts."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard_panels() -> list[Json]:
    panels: list[Json] = json.loads((FILES / "grafana-dashboard.json").read_text())["panels"]
    return panels
