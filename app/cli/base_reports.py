"""Prints what is known of a base model: its verdict, the findings of its examination and what the probe counted."""

from rich.console import Console
from rich.table import Table

from learnloop_service.app.cli.terminal import folded, print_finding, results, table
from learnloop_service.training.bases.report import BaseReport, FormatCount
from learnloop_service.training.bases.verdicts import BaseVerdict

_REASONS = 2


def print_verdict(name: str, verdict: BaseVerdict, console: Console = results) -> None:
    """Print the verdict on a base model, with its report."""
    if verdict.fault is not None:
        print_finding("fault", name, verdict.fault, console=console)
    if verdict.report is not None:
        _print_report(verdict.report, console)


def state_of(verdict: BaseVerdict | None, fault: str | None) -> str:
    """Return in a few words whether runs can use a base model."""
    if fault is not None:
        return fault
    if verdict is None or verdict.report is None:
        return "not examined"
    names = ", ".join(finding.name for finding in verdict.report.warnings)
    if names:
        return f"warning: {names}"
    return "ok" if verdict.report.probe else "ok, not asked for calls"


def _print_report(report: BaseReport, console: Console) -> None:
    for finding in report.findings:
        print_finding(finding.severity, finding.name, finding.found, finding.remedy, console)
    if report.probe:
        console.print(_table(report))


def _table(report: BaseReport) -> Table:
    def row(count: FormatCount) -> tuple[str, ...]:
        chosen = " *" if count.tool_format == report.tool_format else ""
        numbers = map(str, (count.prompts, count.calls, count.malformed, count.no_call))
        return f"{count.tool_format}{chosen}", *numbers, _reasons(count)

    columns = map(folded, ("FORMAT", "PROMPTS", "CALLS", "MALFORMED", "NO CALL", "MALFORMED BECAUSE"))
    return table(columns, map(row, report.probe))


def _reasons(count: FormatCount) -> str:
    most = sorted(count.reasons.items(), key=lambda pair: -pair[1])[:_REASONS]
    return "; ".join(f"{reason} ({number})" for reason, number in most)
