"""Names the causes of a run's trouble, from the facts of its iterations. Pure: the same facts give the same diagnoses.

It names what has been true since some iteration. It does not foretell what a run will do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from learnloop_service.training.diagnosis import (
    collapses,
    contradictions,
    generalisation,
    judging,
    rewarding,
    scenarios,
    symptoms,
    trends,
)
from learnloop_service.training.diagnosis.detector import Detector
from learnloop_service.training.diagnosis.diagnosis import Cause, CausePeriod, Diagnosis, DiagnosisSettings, NotExamined
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.diagnosis.unexplained import Unexplained

_DETECTORS: Mapping[Cause, type[Detector]] = {
    Cause.INFRASTRUCTURE_FAILURES: symptoms.InfrastructureFailures,
    Cause.AGENT_ERRORS: symptoms.AgentErrors,
    Cause.SAMPLER_IS_NOT_TRAINER: contradictions.SamplerIsNotTrainer,
    Cause.WEIGHTS_UNCHANGED: contradictions.WeightsUnchanged,
    Cause.UNUSUAL_LEARNING_RATE: contradictions.UnusualLearningRate,
    Cause.POLICY_COLLAPSED: collapses.PolicyCollapsed,
    Cause.NOTHING_VARIES: contradictions.NothingVaries,
    Cause.STALE_POLICY: contradictions.StalePolicy,
    Cause.PARSER_DRIFT: contradictions.ParserDrift,
    Cause.TRUNCATED_REPLIES: symptoms.TruncatedReplies,
    Cause.OUT_OF_TURNS: symptoms.OutOfTurns,
    Cause.MALFORMED_REPLIES: symptoms.MalformedReplies,
    Cause.ENVIRONMENT_FLAKY: contradictions.EnvironmentFlaky,
    Cause.TOOL_ERRORS: symptoms.ToolErrors,
    Cause.JUDGE_SILENT: judging.JudgeSilent,
    Cause.JUDGE_CONSTANT: judging.JudgeConstant,
    Cause.JUDGE_DISAGREES: judging.JudgeDisagrees,
    Cause.DUPLICATE_SCENARIOS: scenarios.DuplicateScenarios,
    Cause.TOO_HARD: scenarios.TooHard,
    Cause.TOO_EASY: scenarios.TooEasy,
    Cause.REWARD_HACKED: rewarding.RewardHacked,
    Cause.PART_DOMINATES: rewarding.PartDominates,
    Cause.STALE_ROLLOUTS: trends.StaleRollouts,
    Cause.ENTROPY_COLLAPSE: trends.EntropyCollapse,
    Cause.STEPS_SHORTENED: trends.StepsShortened,
    Cause.STEPS_TOO_SMALL: trends.StepsTooSmall,
    Cause.FEW_GROUPS_DECIDE: trends.FewGroupsDecide,
    Cause.LENGTH_GROWTH: trends.LengthGrowth,
    Cause.OVERFITS: generalisation.Overfits,
    Cause.FORGETS: generalisation.Forgets,
}
_CONSEQUENCES: Mapping[Cause, frozenset[Cause]] = {
    Cause.NOTHING_VARIES: frozenset(
        {
            Cause.JUDGE_CONSTANT,
            Cause.TOO_HARD,
            Cause.TOO_EASY,
            Cause.ENTROPY_COLLAPSE,
            Cause.STEPS_TOO_SMALL,
            Cause.FEW_GROUPS_DECIDE,
        }
    ),
    Cause.UNUSUAL_LEARNING_RATE: frozenset(
        {Cause.POLICY_COLLAPSED, Cause.STEPS_SHORTENED, Cause.STEPS_TOO_SMALL, Cause.ENTROPY_COLLAPSE}
    ),
    Cause.POLICY_COLLAPSED: frozenset(
        {
            Cause.TRUNCATED_REPLIES,
            Cause.OUT_OF_TURNS,
            Cause.MALFORMED_REPLIES,
            Cause.TOO_HARD,
            Cause.ENTROPY_COLLAPSE,
            Cause.FEW_GROUPS_DECIDE,
        }
    ),
    Cause.OUT_OF_TURNS: frozenset({Cause.TOO_HARD}),
    Cause.MALFORMED_REPLIES: frozenset({Cause.TOO_HARD}),
    Cause.JUDGE_CONSTANT: frozenset({Cause.TOO_HARD, Cause.TOO_EASY, Cause.JUDGE_DISAGREES}),
    Cause.JUDGE_DISAGREES: frozenset({Cause.REWARD_HACKED}),
    Cause.TOO_EASY: frozenset({Cause.FEW_GROUPS_DECIDE}),
    Cause.TOO_HARD: frozenset({Cause.FEW_GROUPS_DECIDE}),
}
"""Causes that an active earlier one explains, because its symptom makes theirs."""


def diagnose(facts: Sequence[Facts], settings: DiagnosisSettings) -> list[Diagnosis]:
    """Return the diagnoses of a run with these iterations, which begin with the baseline, in the order of causes."""
    if not facts:
        return []
    detectors = {cause: detector(settings) for cause, detector in _DETECTORS.items()}
    spans = {cause: detector.spans(facts) for cause, detector in detectors.items()}
    rest = Unexplained(settings, [span for of_cause in spans.values() for span in of_cause])
    detectors[Cause.UNEXPLAINED], spans[Cause.UNEXPLAINED] = rest, rest.spans(facts)
    diagnoses = [_diagnosis(cause, detectors[cause], spans[cause][-1], facts) for cause in Cause if spans[cause]]
    return [replace(diagnosis, explained_by=_explanation(diagnosis, diagnoses, facts)) for diagnosis in diagnoses]


def not_examined(facts: Sequence[Facts], settings: DiagnosisSettings) -> list[NotExamined]:
    """Return the causes that could not be examined in these iterations, and why."""
    if not any(iteration.groups for iteration in facts):
        return [NotExamined(cause, "No iteration has trained on rollouts yet.") for cause in Cause]
    reasons = {cause: detector(settings).not_examined(facts) for cause, detector in _DETECTORS.items()}
    return [NotExamined(cause, reason) for cause in Cause if (reason := reasons.get(cause)) is not None]


def _diagnosis(cause: Cause, detector: Detector, span: CausePeriod, facts: Sequence[Facts]) -> Diagnosis:
    until_cleared = (
        facts if span.cleared is None else [iteration for iteration in facts if iteration.iteration <= span.cleared]
    )
    return Diagnosis(
        cause,
        "active" if span.cleared is None else "cleared",
        detector.severity,
        span.first,
        span.named,
        detector.summary(until_cleared, span),
        detector.evidence(until_cleared, span),
        detector.remedy(until_cleared, span),
    )


def _explanation(diagnosis: Diagnosis, diagnoses: Sequence[Diagnosis], facts: Sequence[Facts]) -> Cause | None:
    """Return the first active cause that explains the diagnosis."""
    active = {other.cause for other in diagnoses if other.state == "active"}
    if diagnosis.cause is Cause.MALFORMED_REPLIES and Cause.TRUNCATED_REPLIES in active:
        groups = [
            group
            for iteration in facts
            if iteration.iteration >= diagnosis.first_iteration
            for group in iteration.groups
        ]
        shared = sum(group.truncated_malformed for group in groups)
        return Cause.TRUNCATED_REPLIES if 2 * shared >= sum(group.malformed for group in groups) else None
    return next((cause for cause in Cause if cause in active and diagnosis.cause in _CONSEQUENCES.get(cause, ())), None)
