"""Reasons why a run may learn nothing: its base model, that model's stored examination, and what the request sets."""

from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.operations.start.run_plan import RunPlan
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.settings import Settings
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.bases.defaults import BaseModelFacts, factor_from_usual, usual_rate
from learnloop_service.training.bases.report import CALLS, Finding, FindingSeverity
from learnloop_service.training.bases.verdicts import BaseVerdicts


def base_model_findings(settings: Settings, backend: str, base_model: str) -> list[Finding]:
    """Return what is wrong with the base model, or was never examined. Reads files: call it in a thread.

    The tiny base, checkpoints, and base models of an engine elsewhere or of other backends have no findings.
    """
    if not is_on_engine(backend) or settings.engine_url is not None or base_model == TINY_BASE:
        return []
    if (directory := settings.base_models.get(base_model)) is None:
        return []
    verdict = BaseVerdicts(settings.data_dir).find(directory)
    examine = f"Run `learnloop bases check {base_model}`."
    if verdict is None or verdict.report is None:
        fault = "It was never examined, so it is not known whether it can write tool calls and ends its replies."
        return [Finding("examination", FindingSeverity.WARNING, fault, examine)]
    findings = list(verdict.report.warnings)
    if not verdict.report.probe and not any(finding.name == CALLS for finding in findings):
        fault = "It was never asked for tool calls, so it is not known whether it can write any."
        findings.append(Finding(CALLS, FindingSeverity.WARNING, fault, examine))
    return findings


def base_model_warnings(settings: Settings, backend: str, base_model: str) -> list[str]:
    """Return the findings as warnings of a run, each with what to do."""
    return [
        " ".join(filter(None, (f"The base model {base_model} may not learn.", finding.found, finding.remedy)))
        for finding in base_model_findings(settings, backend, base_model)
    ]


def run_warnings(plan: RunPlan, base: BaseModelFacts, settings: Settings) -> list[str]:
    """Return all warnings about the base model of a run and its settings. Reads files: call it in a thread."""
    request = plan.request
    of_base_model = base_model_warnings(settings, plan.backend, plan.model.base_model)
    return [*of_base_model, *_rate_warnings(request, base), *temperature_warnings(request)]


def temperature_warnings(request: LearnLoopRequest) -> list[str]:
    """Return a warning if the rollouts are sampled with another temperature than that of the log-probabilities."""
    if request.temperature == 1:
        return []
    return [
        f"The rollouts are sampled with a temperature of {request.temperature:g}, but training uses log-probabilities "
        "without it, which turns the gradient away from the exact one. Leave temperature out to train with 1."
    ]


def _rate_warnings(request: LearnLoopRequest, base: BaseModelFacts) -> list[str]:
    """Return a warning if the request gives a learning rate that is far from the base's default."""
    rate, usual = request.learning_rate, usual_rate(base)
    if rate is None or factor_from_usual(rate, usual, is_sized=base.is_sized) is None:
        return []
    much = "above" if rate > usual else "below"
    return [f"The learning rate {rate:g} is far {much} {usual:g}, which suits {base.name}."]
