"""Examines a base model as a whole: check, findings, and the tool format in which it writes calls."""

from dataclasses import replace
from pathlib import Path

from learnloop_service.training.bases.child_processes import NotChecked, OnProgress, check, probe
from learnloop_service.training.bases.files import place_of_added
from learnloop_service.training.bases.report import CALLS, BaseReport, Finding, FindingSeverity, FormatCount
from learnloop_service.training.bases.verdicts import BaseVerdict, BaseVerdicts
from learnloop_service.training.protocol.tool_formats.chosen import FILE, choose, chosen_format
from learnloop_service.training.protocol.tool_formats.formats import FORMATS

__all__ = ["NotChecked", "ask_for_calls", "examine", "with_probe"]


def examine(directory: Path, data_dir: Path, *, prompts: int, device: str, progress: OnProgress) -> BaseVerdict:
    """Check a base model again, ask it for calls with `prompts` prompts in each format, and keep the verdict.

    0 keeps the result of an earlier probe of the same files. Raises NotChecked.
    """
    progress.phase("examining it")
    verdicts = BaseVerdicts(data_dir)
    before = verdicts.find(directory)
    verdict = check(directory)
    if verdict.report is not None and before is not None and before.report is not None:
        verdict = replace(verdict, report=verdict.report.with_probe_of(before.report))
    verdicts.keep(directory, verdict)
    return ask_for_calls(directory, data_dir, verdict, prompts=prompts, device=device, progress=progress)


def ask_for_calls(
    directory: Path, data_dir: Path, verdict: BaseVerdict, *, prompts: int, device: str, progress: OnProgress
) -> BaseVerdict:
    """Probe a base model that was checked, and keep the verdict with the result.

    The tool format that it chooses is named in the directory of a base model that was added. A probe that fails is a
    finding, since the base model can still be used.
    """
    if verdict.fault is not None or verdict.report is None or prompts == 0:
        return verdict
    try:
        counts = probe(directory, prompts=prompts, device=device, progress=progress)
    except NotChecked as error:
        finding = Finding(CALLS, FindingSeverity.WARNING, f"It could not be asked for calls: {error}.", _AGAIN)
        report = verdict.report.with_findings([finding])
    else:
        report = with_probe(verdict.report, counts)
        if report.tool_format is not None:
            report = _with_format(directory, data_dir, report, report.tool_format)
    verdict = replace(verdict, report=report)
    BaseVerdicts(data_dir).keep(directory, verdict)
    return verdict


_AGAIN = "Repeat it with `learnloop bases check NAME`."


def _with_format(directory: Path, data_dir: Path, report: BaseReport, name: str) -> BaseReport:
    """Name the tool format in the directory of a base model that was added. For others, say that it should be."""
    if directory == place_of_added(data_dir, directory.name):
        choose(directory, FORMATS[name])
        return report
    named = chosen_format(directory)
    if name == (named.name if named else report.probe[0].tool_format):
        return report
    remedy = f'Write {{"tool_format": "{name}"}} into {directory / FILE}, or use `learnloop bases add`.'
    text = f"It writes calls as {name}, but they are read as {named.name if named else report.probe[0].tool_format}."
    return report.with_findings([Finding("tool format", FindingSeverity.WARNING, text, remedy)])


def with_probe(report: BaseReport, counts: tuple[FormatCount, ...]) -> BaseReport:
    """Return the report with what was counted, and the tool format with the most readable calls. Of equal ones it is
    the first, which is the chat template's own."""
    best = max(counts, key=lambda count: count.calls)
    chosen = best.tool_format if best.calls else None
    return replace(report, probe=counts, tool_format=chosen).with_findings([_finding(best)])


def _finding(best: FormatCount) -> Finding:
    counted = f"{best.calls} of {best.prompts} replies"
    if not best.calls:
        return Finding(
            CALLS,
            FindingSeverity.WARNING,
            f"It writes no tool call in any format ({best.prompts} prompts each).",
            "Give the run demonstrations (`warm_start`), or take a base model that was trained on tools.",
        )
    if 2 * best.calls < best.prompts:
        return Finding(
            CALLS,
            FindingSeverity.NOTE,
            f"It writes calls as {best.tool_format}, but only {counted} have one; a warm start helps.",
        )
    return Finding(CALLS, FindingSeverity.OK, f"It writes calls as {best.tool_format}: {counted} have one.")
