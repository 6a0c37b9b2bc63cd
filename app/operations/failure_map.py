"""Counts tasks by the pattern of their failures, and compares them with an earlier evaluation or iteration."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import ColumnElement, Text, case, cast, func, literal_column, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.errors import NotFound
from learnloop_service.app.operations.failure_sides import FailureSide
from learnloop_service.app.schemas.failures import (
    BecameOut,
    FailedRolloutOut,
    FailureMap,
    FailurePatternOut,
    FailureSideOut,
    LostTaskOut,
    TaskShareOut,
)
from learnloop_service.environment import registry
from learnloop_service.environment.explained import shortened
from learnloop_service.training.diagnosis.patterns import Pattern, other_pattern, pattern_of
from learnloop_service.training.rollout.histories import transcript
from learnloop_service.training.statistics.shares import wilson

MOST_PATTERNS = 12
_MOST_ROLLOUTS = 10
_MOST_LOST = 200
_LONGEST = 300
"""Maximum number of characters of a reason."""
_ROWS = 200
"""Number of rows that are read at a time: their messages can be large."""
_COLUMNS = (
    *("id", "scenario_id", "success", "reward", "error", "failure", "outcome", "score"),
    *("score_explanation", "score_parts", "reward_parts", "why_no_success"),
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rollout of a task. `pattern` is None if it is a success."""

    rollout: FailedRolloutOut
    pattern: Pattern | None


Tasks = Mapping[str, Sequence[Attempt]]
"""Rollouts by task: equal scenarios on both sides are one task."""


async def failure_map(database: Database, now: FailureSide, before: FailureSide | None) -> FailureMap:
    """Return the map of the side `now`. Raises NotFound for a side without rollouts, or without common tasks."""
    return compared(*[(side, await _tasks(database, side)) for side in (now, before) if side is not None])


def compared(now: tuple[FailureSide, Tasks], *before: tuple[FailureSide, Tasks]) -> FailureMap:
    """Return the map of the tasks of a side; with an earlier side, of those that both have.

    Raises NotFound if they have none in common.
    """
    if not (common := set(now[1]).intersection(*(tasks for _, tasks in before))):
        raise NotFound("The two have no task in common. Compare rollouts of the same scenarios.")
    states = [_state(tasks[task]) for _, tasks in (now, *before) for task in common]
    names = _names(state for state in states if state is not None)
    current, *earlier = [_Counted(side, tasks, common, names) for side, tasks in (now, *before)]
    past = earlier[0] if earlier else None
    counts = Counter(pattern for side in (current, *earlier) for pattern in side.patterns.values() if pattern)
    ranked = sorted(counts, key=lambda pattern: (-counts[pattern], pattern.id))
    lost = [] if past is None else _lost(current, past)
    return FailureMap(
        now=current.side,
        before=None if past is None else past.side,
        patterns=[
            FailurePatternOut(
                id=pattern.id,
                sentence=pattern.sentence,
                now=current.share(pattern),
                before=None if past is None else past.share(pattern),
                became=[] if past is None else _became(current, past, pattern),
                rollouts=next(filter(None, (side.rollouts(pattern) for side in (current, *earlier)))),
            )
            for pattern in ranked
        ],
        lost_tasks=len(lost),
        lost=sorted(lost, key=lambda task: task.scenario_id)[:_MOST_LOST],
    )


class _Counted:
    """The tasks of a side, each with the pattern that it counts for, or None if it is solved."""

    def __init__(self, side: FailureSide, tasks: Tasks, common: Iterable[str], names: Mapping[str, Pattern]) -> None:
        self._names = names
        self.tasks = {task: tasks[task] for task in sorted(common)}
        self.patterns = {task: self.name(_state(attempts)) for task, attempts in self.tasks.items()}
        self._counts = Counter(self.patterns.values())
        left_out = len(tasks) - len(self.tasks)
        self.side = FailureSideOut(
            name=side.name, source=side.source, tasks=len(self.tasks), left_out=left_out, solved=self.share(None)
        )

    def name(self, pattern: Pattern | None) -> Pattern | None:
        """Return the pattern as it is shown: by itself, or together with others of its ending."""
        return None if pattern is None else self._names.get(pattern.id) or other_pattern(pattern.ending)

    def share(self, pattern: Pattern | None) -> TaskShareOut:
        """Return how many tasks have a pattern, or are solved."""
        tasks, share = self._counts[pattern], self._counts[pattern] / len(self.tasks)
        low, high = wilson(share, len(self.tasks))
        return TaskShareOut(tasks=tasks, mean=share, low=low, high=high)

    def rollouts(self, pattern: Pattern) -> list[FailedRolloutOut]:
        """Return the first rollouts with a pattern, of the tasks that count for it."""
        tasks = [attempts for task, attempts in self.tasks.items() if self.patterns[task] == pattern]
        rollouts = [one.rollout for attempts in tasks for one in attempts if self.name(one.pattern) == pattern]
        return sorted(rollouts, key=lambda rollout: (rollout.scenario_id, rollout.trajectory_id))[:_MOST_ROLLOUTS]

    def example(self, task: str) -> FailedRolloutOut:
        """Return the first rollout of a task that ended as the task counts."""
        return next(one.rollout for one in self.tasks[task] if self.name(one.pattern) == self.patterns[task])


def _became(now: _Counted, before: _Counted, pattern: Pattern) -> list[BecameOut]:
    """Return what the tasks became that had the pattern, the most frequent first."""
    states = [now.patterns[task] for task in before.tasks if before.patterns[task] == pattern]
    counts = Counter(state.id if state else None for state in states)
    ranked = sorted(counts, key=lambda id: (-counts[id], id or ""))
    return [BecameOut(pattern=id, tasks=counts[id]) for id in ranked]


def _lost(now: _Counted, before: _Counted) -> list[LostTaskOut]:
    """Return the tasks that were solved before and fail now."""
    return [
        LostTaskOut(
            scenario_id=now.example(task).scenario_id,
            pattern=pattern.id,
            trajectory_id=now.example(task).trajectory_id,
            before_trajectory_id=before.example(task).trajectory_id,
        )
        for task, pattern in now.patterns.items()
        if pattern is not None and before.patterns[task] is None
    ]


def _state(attempts: Sequence[Attempt]) -> Pattern | None:
    """Return the commonest pattern of a task's failures, the first by id of equally common ones; None if more than half
    of its rollouts are successes."""
    failures = [attempt.pattern for attempt in attempts if attempt.pattern is not None]
    if 2 * len(failures) < len(attempts):
        return None
    counts = Counter(pattern.id for pattern in failures)
    return min(failures, key=lambda pattern: (-counts[pattern.id], pattern.id, pattern.sentence))


def _names(states: Iterable[Pattern]) -> dict[str, Pattern]:
    """Return the patterns that are shown by themselves, by id: those of most tasks."""
    sentences: dict[str, list[str]] = defaultdict(list)
    for pattern in states:
        sentences[pattern.id].append(pattern.sentence)
    ranked = sorted(sentences, key=lambda id: (-len(sentences[id]), id))
    return {id: Pattern(id, min(sentences[id])) for id in ranked[:MOST_PATTERNS]}


async def _tasks(database: Database, side: FailureSide) -> Tasks:
    """Return the rollouts of a side by task, in the order in which they were saved. Raises NotFound without any."""
    milestones, row = registry.traits(side.environment).milestones, Trajectory
    task = func.concat(row.scenario_id, " ", func.md5(cast(row.scenario, Text))).label("task")
    empty: ColumnElement[Any] = literal_column("'[]'::jsonb")  # the messages of successes are not read
    messages = [
        case((row.success.is_(True), empty), else_=column).label(column.key)
        for column in (row.messages, row.additional_histories)
    ]
    query = select(task, *(getattr(row, name) for name in _COLUMNS), *messages).where(*side.rollouts).order_by(row.seq)
    tasks: dict[str, list[Attempt]] = defaultdict(list)
    async with database() as tx:
        async for saved in await tx.stream(query, execution_options={"yield_per": _ROWS}):
            tasks[saved.task].append(_attempt(saved, milestones))
    if not tasks:
        why = "wait for some, unless they were deleted because of their age"
        raise NotFound(f"There are no judged rollouts of {side.name} ({side.source}): {why}.")
    return tasks


def _attempt(row: Any, milestones: Mapping[str, str]) -> Attempt:
    histories = [row.messages, *(history["messages"] for history in row.additional_histories)]
    messages = transcript(histories) if row.additional_histories else row.messages
    why = row.why_no_success if row.error is None else shortened(row.error, _LONGEST)
    reason = shortened(row.score_explanation or "", _LONGEST) if row.error is None else None
    rollout = FailedRolloutOut(trajectory_id=row.id, scenario_id=row.scenario_id, why=why, reason=reason or None)
    return Attempt(rollout, pattern_of(SimpleNamespace(**{**row._mapping, "messages": messages}), milestones))
