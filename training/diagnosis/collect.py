"""Computes an iteration's facts from its result."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, median

from learnloop_service.environment.base import Scenario, Split
from learnloop_service.training.collapse import RESTORED
from learnloop_service.training.diagnosis.count_group import (
    INFRASTRUCTURE,
    agent_failed,
    count_group,
    facts_of_group,
    infrastructure_failed,
    last_reply,
    malformed,
    out_of_turns,
    sampled_count,
    tool_errors,
    truncated,
)
from learnloop_service.training.diagnosis.facts import MAX_EXAMPLES, Facts, Form, GroupFacts, HeldOut, RewardFacts
from learnloop_service.training.diagnosis.patterns import form_of
from learnloop_service.training.diagnosis.true_success import TrueSuccess
from learnloop_service.training.inclusion import is_replacement, weight
from learnloop_service.training.no_signal import no_signal_of
from learnloop_service.training.scoring import successes
from learnloop_service.training.types import (
    Evaluation,
    FailureKind,
    Group,
    IterationResult,
    Rollout,
    RunConfig,
    ScoredRollout,
)

_SHOWN = 200
"""Characters that are kept of an error or of a malformed reply."""
_METRICS = ("entropy", "step_kl", "step_share", RESTORED)


def facts_of(result: IterationResult, config: RunConfig, true_success: TrueSuccess) -> Facts:
    """Return the facts that the result itself contains. `true_success` says which of the rollouts succeeded by the
    environment's own check."""
    limit = config.max_completion_tokens
    rollouts = [scored.rollout for group in result.groups for scored in group.rollouts]
    scheduled = [group for group in result.groups if not is_replacement(group)]

    def counted(group: Group) -> GroupFacts:
        return facts_of_group(group, limit, true_success)

    failures = [rollout.failure for rollout in rollouts if rollout.failure and rollout.failure.kind in INFRASTRUCTURE]
    held_out = {
        str(evaluation.mode): evaluation for evaluation in result.evaluations if evaluation.split == "validation"
    }
    sampled = held_out.get("sampled")
    return Facts(
        iteration=result.iteration,
        step=result.step,
        sampled_step=result.sampled_step,
        staleness=result.staleness,
        kl_div=result.train_metrics.get("kl_div"),
        groups=tuple(counted(group) for group in scheduled),
        replacements=tuple(counted(group) for group in result.groups if is_replacement(group)),
        timeouts=sum(failure.kind is FailureKind.TIMEOUT for failure in failures),
        examples={symptom: tuple(ids[:MAX_EXAMPLES]) for symptom, ids in _symptoms(rollouts, limit).items() if ids},
        errors=_first_texts(failure.message for failure in failures),
        agent_errors=_first_texts(rollout.error or "" for rollout in rollouts if agent_failed(rollout)),
        judge_errors=_first_texts(
            scored.score.explanation
            for group in result.groups
            for scored in group.rollouts
            if scored.reward is None and scored.rollout.failure is None
        ),
        forms=forms_of(rollouts),
        evaluated=count_group(sampled.rollouts, limit, true_success) if sampled else None,
        held_out=_held_out(held_out) if held_out else None,
        rewards=_rewards([scored for group in scheduled for scored in group.rollouts]),
        completion_tokens=_median_length(scheduled),
        metrics={name: result.train_metrics[name] for name in _METRICS if name in result.train_metrics},
        no_signal=no_signal_of(result.groups),
        tasks=_tasks(result, has_all=not config.evaluation.baseline_width),
    )


def _symptoms(rollouts: Sequence[Rollout], limit: int) -> dict[str, list[str]]:
    """Return the ids of the rollouts with each symptom, those with most errors of tools first."""
    by_tool_errors = sorted(rollouts, key=tool_errors, reverse=True)
    return {
        "infrastructure": [rollout.id for rollout in rollouts if infrastructure_failed(rollout)],
        "agent_errors": [rollout.id for rollout in rollouts if agent_failed(rollout)],
        "truncated": [rollout.id for rollout in rollouts if truncated(rollout, limit)],
        "malformed": [rollout.id for rollout in rollouts if malformed(rollout)],
        "out_of_turns": [rollout.id for rollout in rollouts if out_of_turns(rollout)],
        "tool_errors": [rollout.id for rollout in by_tool_errors if tool_errors(rollout)],
    }


def _median_length(groups: Iterable[Group]) -> float | None:
    lengths = [sampled_count(scored.rollout) for group in groups for scored in group.rollouts]
    return median(lengths) if lengths else None


def _first_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the first three distinct texts, shortened."""
    return tuple(dict.fromkeys(text[:_SHOWN] for text in texts))[:3]


def _held_out(evaluations: Mapping[str, Evaluation]) -> HeldOut:
    by_mode = {mode: _rounded(successes(evaluation.rollouts)) for mode, evaluation in evaluations.items()}
    return HeldOut(by_mode.get("sampled", {}), by_mode.get("greedy", {}))


def _rounded(rates: Mapping[str, float]) -> dict[str, float]:
    return {id: round(rate, 4) for id, rate in rates.items()}


def _rewards(rollouts: Sequence[ScoredRollout]) -> RewardFacts | None:
    scored = [(rollout.reward, rollout.reward_parts) for rollout in rollouts if rollout.reward is not None]
    if not scored:
        return None
    rewards = [reward for reward, _ in scored]
    weights = [weight(rollout) for rollout in rollouts if rollout.reward is not None]
    names = dict.fromkeys(name for _, parts in scored for name in parts)
    means = {name: round(fmean([parts.get(name, 0.0) for _, parts in scored], weights), 4) for name in names}
    mean = fmean(rewards, weights)
    deviation = sqrt(fmean([(reward - mean) ** 2 for reward in rewards], weights))
    return RewardFacts(round(mean, 4), round(deviation, 4), means)


def _tasks(result: IterationResult, *, has_all: bool) -> dict[str, dict[str, str]]:
    """Return the hashes of the tasks by split. Held-out scenarios are included where they were evaluated, but where
    the baseline `has_all` of them, only there."""
    scenarios = [group.scenario for group in result.groups]
    if result.iteration == 0 or not has_all:
        scenarios += [scored.rollout.scenario for evaluation in result.evaluations for scored in evaluation.rollouts]
    hashes: dict[Split, dict[str, str]] = {}
    for scenario in scenarios:
        hashes.setdefault(scenario.split, {})[scenario.id] = _task_hash(scenario)
    return {str(split): of_split for split, of_split in hashes.items()}


def _task_hash(scenario: Scenario) -> str:
    task = json.dumps(dict(scenario.task), sort_keys=True, default=str)
    return hashlib.sha256(task.encode()).hexdigest()[:12]


def forms_of(rollouts: Iterable[Rollout]) -> tuple[Form, ...]:
    """Return the three commonest forms of the malformed rollouts' last replies.

    Replies have the same form if they differ only in numbers and in long strings.
    """
    counts: Counter[str] = Counter()
    first: dict[str, tuple[str, str]] = {}
    for rollout in rollouts:
        if not malformed(rollout):
            continue
        text = last_reply(rollout)
        form = form_of(text)
        counts[form] += 1
        first.setdefault(form, (text[:_SHOWN], rollout.id))
    common = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))[:3]
    return tuple(Form(count, *first[form]) for form, count in common)
