"""What a stored examination says of a run's base model that may keep the run from learning."""

from app.domain.names import TINY_BASE
from app.settings import Settings
from training.backends import embedded
from training.base_report import CALLS, Finding, Severity
from training.base_verdicts import BaseVerdicts


def base_model_findings(settings: Settings, backend: str, base_model: str) -> list[Finding]:
    """Return what is wrong with the base model, or was never examined. Reads files: call it in a thread.

    The tiny base, checkpoints, and base models of an engine elsewhere or of other backends have no findings.
    """
    if backend != embedded.NAME or settings.engine_url is not None or base_model == TINY_BASE:
        return []
    if (directory := settings.base_models.get(base_model)) is None:
        return []
    verdict = BaseVerdicts(settings.data_dir).find(directory)
    examine = f"Run `learnloop bases check {base_model}`."
    if verdict is None or verdict.report is None:
        found = "It was never examined, so it is not known whether it can write tool calls and ends its replies."
        return [Finding("examination", Severity.WARNING, found, examine)]
    found_wrong = list(verdict.report.warnings)
    if not verdict.report.probe and not any(each.name == CALLS for each in found_wrong):
        found = "It was never asked for tool calls, so it is not known whether it can write any."
        found_wrong.append(Finding(CALLS, Severity.WARNING, found, examine))
    return found_wrong


def base_model_warnings(settings: Settings, backend: str, base_model: str) -> list[str]:
    """Return the findings as warnings of a run, each with what to do."""
    return [
        " ".join(filter(None, (f"The base model {base_model} may not learn.", each.found, each.remedy)))
        for each in base_model_findings(settings, backend, base_model)
    ]
