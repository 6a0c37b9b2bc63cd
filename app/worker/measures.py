"""Prometheus metrics of the work that a worker has saved."""

from collections.abc import Iterable

from learnloop_service.app import instruments
from learnloop_service.app.domain.supervised import supervised_figures
from learnloop_service.judges.base import JudgeCall
from learnloop_service.training.diagnosis.diagnosis import Diagnosis
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationResult, Rollout


def count_iteration(result: IterationResult) -> None:
    """Count a saved iteration."""
    instruments.ITERATION_SECONDS.observe(result.timing.total_s)
    for phase in Phase:
        if seconds := getattr(result.timing, f"{phase}_s"):
            instruments.PHASE_SECONDS.labels(phase).observe(seconds)
    if result.staleness is not None:
        instruments.STALENESS.inc(result.staleness)
    if (supervised := supervised_figures(result.train_metrics)) is not None:
        instruments.DEMONSTRATIONS.inc(supervised["demonstrations"])
        instruments.SUPERVISED_TOKENS.inc(supervised["tokens"] or 0)
    for group in result.groups:
        instruments.GROUPS.labels(group.skipped or "trained").inc()
        count_rollouts("train", (scored.rollout for scored in group.rollouts))
        count_judge_calls(group.judge_calls)
    for evaluation in result.evaluations:
        count_rollouts("evaluation", (scored.rollout for scored in evaluation.rollouts))
        count_judge_calls(evaluation.judge_calls)
    if result.reflection is not None:
        count_rollouts("showcase", [result.reflection.showcase.rollout])
        count_judge_calls(result.reflection.judge_calls)


def count_diagnoses(diagnoses: Iterable[Diagnosis], iteration: int) -> None:
    """Count the diagnoses that were named in an iteration."""
    for diagnosis in diagnoses:
        if diagnosis.state == "active" and diagnosis.named_at_iteration == iteration:
            instruments.DIAGNOSES.labels(diagnosis.cause, diagnosis.severity).inc()


def count_rollouts(kind: str, rollouts: Iterable[Rollout]) -> None:
    """Count rollouts of one kind of trajectory, and their tokens."""
    for rollout in rollouts:
        instruments.ROLLOUTS.labels(kind, "failed" if rollout.failure is not None else "ok").inc()
        for part in ("prompt", "completion"):
            instruments.TOKENS.labels(part).inc(rollout.trajectory.metrics.get(f"{part}_tokens", 0))


def count_judge_calls(calls: Iterable[JudgeCall]) -> None:
    """Count calls to judge models."""
    for call in calls:
        outcome = "failed" if call.error is not None else "cached" if call.cached else "ok"
        instruments.JUDGE_CALLS.labels(outcome).inc()
        instruments.JUDGE_REQUESTS.inc(call.requests)
        instruments.JUDGE_TOKENS.labels("prompt").inc(call.prompt_tokens)
        instruments.JUDGE_TOKENS.labels("completion").inc(call.completion_tokens)
        instruments.JUDGE_COST.inc(call.cost_usd or 0.0)
        if not call.cached:
            instruments.JUDGE_SECONDS.observe(call.seconds)
