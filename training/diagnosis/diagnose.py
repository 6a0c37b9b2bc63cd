"""Names the causes of a run's trouble, from the facts of its iterations. Pure: the same facts give the same diagnoses.

It names what has been true since some iteration. It does not foretell what a run will do.
"""

from collections.abc import Sequence
from dataclasses import replace

from training.diagnosis.contradictions import (
    ParserDrift,
    SamplerIsNotTrainer,
    StalePolicy,
    UnusualLearningRate,
    WeightsUnchanged,
)
from training.diagnosis.detector import Detector
from training.diagnosis.diagnosis import Cause, Diagnosis, DiagnosisSettings, NotExamined
from training.diagnosis.facts import Facts
from training.diagnosis.symptoms import InfrastructureFailures, MalformedReplies, TruncatedReplies

_DETECTORS: dict[Cause, type[Detector]] = {
    Cause.INFRASTRUCTURE_FAILURES: InfrastructureFailures,
    Cause.SAMPLER_IS_NOT_TRAINER: SamplerIsNotTrainer,
    Cause.WEIGHTS_UNCHANGED: WeightsUnchanged,
    Cause.UNUSUAL_LEARNING_RATE: UnusualLearningRate,
    Cause.STALE_POLICY: StalePolicy,
    Cause.PARSER_DRIFT: ParserDrift,
    Cause.TRUNCATED_REPLIES: TruncatedReplies,
    Cause.MALFORMED_REPLIES: MalformedReplies,
}


def diagnose(facts: Sequence[Facts], settings: DiagnosisSettings) -> list[Diagnosis]:
    """Return the diagnoses of a run with these iterations, which begin with the baseline, in the order of causes."""
    if not facts:
        return []
    found = [_newest(cause, _DETECTORS[cause](settings), facts) for cause in Cause if cause in _DETECTORS]
    diagnoses = [each for each in found if each is not None]
    return [replace(each, explained_by=_explanation(each, diagnoses, facts)) for each in diagnoses]


def not_examined(facts: Sequence[Facts], settings: DiagnosisSettings) -> list[NotExamined]:
    """Return the causes that could not be examined in these iterations, and why."""
    if not any(each.groups for each in facts):
        return [NotExamined(cause, "No iteration has trained on rollouts yet.") for cause in Cause]
    reasons = {cause: detector(settings).not_examined(facts) for cause, detector in _DETECTORS.items()}
    return [NotExamined(cause, reason) for cause in Cause if (reason := reasons.get(cause)) is not None]


def _newest(cause: Cause, detector: Detector, facts: Sequence[Facts]) -> Diagnosis | None:
    """Return the diagnosis of the cause's latest span."""
    spans = detector.spans(facts)
    if not spans:
        return None
    span = spans[-1]
    shown = facts if span.cleared is None else [each for each in facts if each.iteration <= span.cleared]
    return Diagnosis(
        cause,
        "active" if span.cleared is None else "cleared",
        detector.severity,
        span.first,
        span.named,
        detector.summary(shown, span),
        detector.evidence(shown, span),
        detector.remedy(shown, span),
    )


def _explanation(mine: Diagnosis, all_: Sequence[Diagnosis], facts: Sequence[Facts]) -> Cause | None:
    """Return the earlier cause that explains this one: truncated replies explain malformed ones that were cut off."""
    active = {each.cause for each in all_ if each.state == "active"}
    if mine.cause is Cause.MALFORMED_REPLIES and Cause.TRUNCATED_REPLIES in active:
        groups = [group for each in facts if each.iteration >= mine.first_iteration for group in each.groups]
        shared = sum(group.truncated_malformed for group in groups)
        return Cause.TRUNCATED_REPLIES if 2 * shared >= sum(group.malformed for group in groups) else None
    return None
