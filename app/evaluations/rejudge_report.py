"""The report of a rejudging. The stored verdicts suffice to compute it again."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from learnloop_service.app.domain.stored_evaluation import Rejudge
from learnloop_service.app.evaluations.rejudgings import RejudgingStore, StoredGroup
from learnloop_service.environment.json_type import Json
from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from learnloop_service.training.statistics.rejudging import (
    MATTERS,
    Changes,
    Noise,
    RejudgedGroup,
    Scored,
    changes,
    first_changed,
    noise,
)

_LARGEST = 10
_LEAST_SCORED = 0.5
"""Share of the rollouts that must have a score for a rejudging to have a finding."""
Verdicts = Mapping[tuple[str, int], Any]


async def stored_rejudge_report(
    store: RejudgingStore, evaluation_id: str, rejudge: Rejudge, groups: Sequence[StoredGroup]
) -> dict[str, Json]:
    """Return the report on the stored verdicts."""
    verdicts = await store.verdicts(evaluation_id)
    explanations = await store.explanations(evaluation_id, [row.id for row in _largest(groups, verdicts)])
    return await asyncio.to_thread(rejudge_report, rejudge, groups, verdicts, explanations)


def rejudge_report(
    rejudge: Rejudge,
    groups: Sequence[StoredGroup],
    verdicts: Verdicts,
    explanations: Mapping[str, tuple[str, str]],
) -> dict[str, Json]:
    """Return the report. `explanations` are those of the stored and the new scores of the largest changes."""
    finished, scored = _counted(groups, verdicts)
    is_conclusive = finished == 0 or scored >= _LEAST_SCORED * finished
    train = [_rejudged(group, verdicts, rejudge.repeats) for group in groups if group.rows[0].kind == "train"]
    evaluated = [group for group in groups if group.rows[0].kind == "evaluation"]
    measured = noise([_rejudged(group, verdicts, rejudge.repeats) for group in groups])
    everything = changes(train) if train else None
    mattering = first_changed(train, MATTERS) if is_conclusive else None
    evaluations = _evaluations(evaluated, verdicts)
    return {
        "run_id": rejudge.run_id,
        "repeats": rejudge.repeats,
        "rollouts": finished,
        "scored": scored,
        "conclusive": is_conclusive,
        "code": rejudge.code,
        "all": None if everything is None else _before_and_now(everything),
        "iterations": [
            {"iteration": iteration, **_before_and_now(changes(of_iteration))}
            for iteration, of_iteration in _by_iteration(train).items()
        ],
        "evaluations": evaluations,
        "best_step": _best_steps(evaluated, verdicts) if is_conclusive else None,
        "first_changed": first_changed(train) if is_conclusive else None,
        "first_mattering": mattering,
        "noise": None if measured is None else asdict(measured),
        "largest": [_change(row, verdicts[row.id, 0], explanations) for row in _largest(groups, verdicts)],
        "text": _finding(everything, mattering, measured, rejudge.repeats, finished, scored),
    }


def _counted(groups: Sequence[StoredGroup], verdicts: Verdicts) -> tuple[int, int]:
    """Return the number of rollouts that did not fail, and of those that the first repeat scored."""
    finished = [row for group in groups for row in group.rows if row.error is None]
    return len(finished), sum(verdicts[row.id, 0].reward is not None for row in finished)


def _largest(groups: Sequence[StoredGroup], verdicts: Verdicts) -> list[Any]:
    """Return the training rollouts whose reward changes most, at most ten."""

    def distance(row: Any) -> float:
        now = verdicts[row.id, 0].reward
        return 0.0 if row.reward is None or now is None else abs(now - row.reward)

    rows = [row for group in groups if group.rows[0].kind == "train" for row in group.rows]
    changed = [row for row in rows if distance(row) > 0]
    return sorted(changed, key=lambda row: (-distance(row), row.id))[:_LARGEST]


def _rejudged(group: StoredGroup, verdicts: Verdicts, repeats: int) -> RejudgedGroup:
    rows = group.rows
    return RejudgedGroup(
        rows[0].iteration,
        [_scored(row, row) for row in rows],
        [[_scored(verdicts[row.id, repeat], row) for row in rows] for repeat in range(repeats)],
    )


def _scored(verdict: Any, row: Any) -> Scored:
    """Return the figures of a verdict. Whether a rollout without a score succeeded is unknown, unless it failed."""
    is_known = verdict.reward is not None or row.error is not None
    return Scored(verdict.reward, verdict.advantage, verdict.success if is_known else None, verdict.score)


def _by_iteration(groups: Sequence[RejudgedGroup]) -> dict[int, list[RejudgedGroup]]:
    by_iteration = defaultdict[int, list[RejudgedGroup]](list)
    for group in groups:
        by_iteration[group.iteration].append(group)
    return dict(sorted(by_iteration.items()))


def _before_and_now(difference: Changes) -> dict[str, Json]:
    pairs = {
        name: dict(zip(("before", "now"), getattr(difference, name), strict=True)) for name in ("reward", "success")
    }
    return asdict(difference) | pairs


def _evaluations(groups: Sequence[StoredGroup], verdicts: Verdicts) -> list[dict[str, Json]]:
    by_evaluation = defaultdict[tuple[int, str, str, int], list[Any]](list)
    for group in groups:
        for row in group.rows:
            by_evaluation[row.iteration, row.split, row.mode, row.step].append(row)
    return [
        {
            "iteration": iteration,
            "split": split,
            "mode": mode,
            "step": step,
            "success": {"before": _success(rows), "now": _success([verdicts[row.id, 0] for row in rows], rows)},
            "reward": {"before": _reward(rows), "now": _reward([verdicts[row.id, 0] for row in rows])},
        }
        for (iteration, split, mode, step), rows in sorted(by_evaluation.items())
    ]


def _best_steps(groups: Sequence[StoredGroup], verdicts: Verdicts) -> dict[str, Json] | None:
    """Return the checkpoints that the stored and the new scores choose; None without sampled validation rollouts."""
    validated = [group for group in groups if (group.rows[0].split, group.rows[0].mode) == ("validation", "sampled")]
    if not validated:
        return None
    by_step = defaultdict[int, list[StoredGroup]](list)
    for group in validated:
        by_step[group.rows[0].step].append(group)
    best_steps: dict[str, Json] = {}
    for name in ("before", "now"):
        best = BestCheckpoint(min(by_step))
        for step, of_step in sorted(by_step.items()):
            scored = [[row if name == "before" else verdicts[row.id, 0] for row in group.rows] for group in of_step]
            rows = [row for group in of_step for row in group.rows]
            flat = [verdict for group in scored for verdict in group]
            success, reward = _success(flat, rows), _reward(flat)
            if success is None or reward is None:
                continue  # a checkpoint without scores is not one with the score 0
            successes = {
                group.rows[0].scenario_id: rate
                for group, verdicts_of_group in zip(of_step, scored, strict=True)
                if (rate := _success(verdicts_of_group, group.rows)) is not None
            }
            validation = Validation(success, reward, successes)
            best = best.after(step, validation)
        best_steps[name] = best.step
    return best_steps


def _success(scored: Sequence[Any], rows: Sequence[Any] | None = None) -> float | None:
    """Return the share of successes. Failed rollouts are none; unscored ones are left out."""
    flags = [
        bool(verdict.success)
        for verdict, row in zip(scored, rows or scored, strict=True)
        if verdict.reward is not None or row.error is not None
    ]
    return fmean(flags) if flags else None


def _reward(scored: Sequence[Any]) -> float | None:
    rewards = [verdict.reward for verdict in scored if verdict.reward is not None]
    return fmean(rewards) if rewards else None


def _change(row: Any, now: Any, explanations: Mapping[str, tuple[str, str]]) -> dict[str, Json]:
    return {
        "trajectory_id": row.id,
        "iteration": row.iteration,
        "reward": {"before": row.reward, "now": now.reward},
        "advantage": {"before": row.advantage, "now": now.advantage},
        "explanations": list(explanations[row.id]),
    }


def _finding(
    everything: Changes | None, mattering: int | None, measured: Noise | None, repeats: int, finished: int, scored: int
) -> str:
    if scored == finished:
        return _sentence(everything, mattering, measured, repeats)
    counted = f"{scored:,} of {finished:,} rollouts were scored"
    if scored < _LEAST_SCORED * finished:
        return f"No finding: {counted}, which is too few to say what would have changed."
    return f"{_sentence(everything, mattering, measured, repeats)} {counted[0].upper()}{counted[1:]}."


def _sentence(everything: Changes | None, mattering: int | None, measured: Noise | None, repeats: int) -> str:
    if everything is None:
        return "No training rollouts were judged again."
    if mattering is None:
        return "No change that matters: the advantages are the same, so training would have gone the same way."
    flipped = everything.flipped or 0.0
    text = (
        f"Training would have gone another way from iteration {mattering} on: {flipped:.0%} of advantages change sign"
    )
    if repeats < 2 or measured is None or measured.floor is None:
        return f"{text}. The judge's own noise is unknown without repeats."
    floor = f"{measured.floor:.0%} do so between two verdicts of the same judge"
    if flipped <= measured.floor:
        return f"{text}, and {floor}: this is noise."
    return f"{text}, where {floor}."
