"""What the continuations of a rollout did first, how they ended, and what they say about its turns."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Trajectory
from learnloop_service.app.domain.stored_evaluation import Slot, WhatIfEvaluation
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.shares import wilson
from learnloop_service.training.statistics.turn_values import Sampled

_LONGEST_ACTION = 200


@dataclass(frozen=True, slots=True)
class StateValue:
    """The continuations from the state before a turn."""

    sampled: Sampled
    reward: float | None
    """Mean reward; None without a reward."""


def what_if_report(
    request: WhatIfEvaluation, original: Any, rows: Mapping[Slot, Any], messages: Mapping[str, Sequence[Json]]
) -> dict[str, Json]:
    """Return the report. `original` is the recorded rollout's trajectory, `rows` are those of the continuations, and
    `messages` theirs by id."""
    what_if = request.what_if
    groups = defaultdict[tuple[int, int], list[Any]](list)
    for slot, row in sorted(rows.items()):
        groups[slot.scenario, slot.model].append(row)
    return {
        "trajectory_id": original.id,
        "prefix": "exact" if what_if.exact else "rendered",
        "edited": what_if.edit is not None,
        "original": {
            "success": original.success,
            "reward": original.reward,
            "turns": original.turns,
            "next": action(original.messages, what_if.turns[0]) if len(what_if.turns) == 1 else None,
        },
        "continuations": [
            _continued(what_if.turns[turn], request.models[model].label, group, original.messages, messages)
            for (turn, model), group in sorted(groups.items())
        ],
    }


def values_of(rows: Iterable[tuple[int, Any]]) -> dict[int, Sampled]:
    """Return the values of the states before turns, from the judged continuations of one model by their turns."""
    successes = defaultdict[int, list[bool]](list)
    for turn, row in rows:
        if _is_judged(row):
            successes[turn].append(bool(row.success))
    return {turn: Sampled(len(outcomes), sum(outcomes)) for turn, outcomes in sorted(successes.items())}


async def turn_values_of(database: Database, trajectory_id: str) -> dict[int, StateValue]:
    """Return the values of the states before the turns of a rollout, from all what-ifs that count for them."""
    async with database() as tx:
        jobs = await tx.execute(
            select(EvaluationJob.id, EvaluationJob.request).where(EvaluationJob.trajectory_id == trajectory_id)
        )
        what_ifs = {job.id: WhatIfEvaluation.model_validate(job.request).what_if for job in jobs}
        turns = {id: what_if.turns for id, what_if in what_ifs.items() if what_if.counts}
        columns = Trajectory.evaluation_id, Trajectory.slot, Trajectory.success, Trajectory.error, Trajectory.reward
        continuations = await tx.execute(select(*columns).where(Trajectory.evaluation_id.in_(turns)))
        rows = [(turns[row.evaluation_id][Slot.parse(row.slot).scenario], row) for row in continuations]
    rewards = defaultdict[int, list[float]](list)
    for turn, row in rows:
        if row.reward is not None:
            rewards[turn].append(row.reward)
    return {
        turn: StateValue(sampled, fmean(rewards[turn]) if rewards[turn] else None)
        for turn, sampled in values_of(rows).items()
    }


def _is_judged(row: Any) -> bool:
    """Whether a continuation says something about success: it was judged, or failed."""
    return row.success is not None or row.error is not None


def action(messages: Sequence[Json], turn: int) -> str | None:
    """Return what the model did in a turn, from 1, as a line; None if there is no such turn."""
    replies = [message for message in messages if message["role"] == "assistant"]
    if len(replies) < turn:
        return None
    reply = replies[turn - 1]
    calls = [call["function"] for call in reply.get("tool_calls") or ()]
    text = "; ".join(f"{call['name']} {_compact(call['arguments'])}" for call in calls) or str(reply["content"] or "")
    return text if len(text) <= _LONGEST_ACTION else f"{text[: _LONGEST_ACTION - 1]}\N{HORIZONTAL ELLIPSIS}"


def _compact(arguments: str) -> str:
    """Return arguments without the differences that do not matter: spaces and the order of names."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _continued(
    turn: int, label: str, rows: Sequence[Any], original: Sequence[Json], messages: Mapping[str, Sequence[Json]]
) -> dict[str, Json]:
    judged = [row for row in rows if _is_judged(row)]
    rewards = [row.reward for row in rows if row.reward is not None]
    counts, successes = defaultdict[str, int](int), defaultdict[str, int](int)
    for row in judged:
        did = action(messages[row.id], turn) or "(nothing)"
        counts[did] += 1
        successes[did] += bool(row.success)
    same = action(original, turn)
    success = None
    if judged:
        share = sum(bool(row.success) for row in judged) / len(judged)
        low, high = wilson(share, len(judged))
        success = {"mean": share, "low": low, "high": high}
    return {
        "turn": turn,
        "label": label,
        "count": len(judged),
        "success": success,
        "reward": fmean(rewards) if rewards else None,
        "turns": fmean(row.turns for row in rows) if rows else None,
        "next": [
            {"action": did, "count": count, "successes": successes[did], "is_original": did == same}
            for did, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ],
    }
