"""Counts tasks by the pattern of their failures, and compares them with an earlier evaluation or iteration."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, case, cast, func, literal_column, select

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
    TaskCountOut,
)
from learnloop_service.app.schemas.intervals import IntervalOut
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
_SIDE = ("evaluation_id", "model", "run_id", "iteration", "split", "mode")
_CONVERSATION = (Trajectory.messages, Trajectory.additional_histories)
_COLUMNS = tuple(
    getattr(Trajectory, name)
    for name in (
        *("id", "scenario_id", "success", "reward", "error", "failure", "outcome", "score"),
        *("score_explanation", "score_parts", "reward_parts", "why_no_success"),
    )
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rollout of a task. `pattern` is None if it is a success."""

    id: str
    scenario_id: str
    pattern: Pattern | None
    why: str | None = None
    reason: str | None = None


Tasks = Mapping[str, Sequence[Attempt]]
"""Rollouts by task: equal scenarios on both sides are one task."""


async def failure_map(database: Database, now: FailureSide, before: FailureSide | None) -> FailureMap:
    """Return the map of the side `now`. Raises NotFound for a side without rollouts, or without common tasks."""
    current = now, await _tasks(database, now)
    return compared(current, None if before is None else (before, await _tasks(database, before)))


def compared(now: tuple[FailureSide, Tasks], before: tuple[FailureSide, Tasks] | None = None) -> FailureMap:
    """Return the map of the tasks of a side; with an earlier side, of those that both have.

    Raises NotFound if they have none in common.
    """
    sides = [now] if before is None else [now, before]
    if not (common := frozenset(now[1]).intersection(*(tasks for _, tasks in sides))):
        raise NotFound("The two have no task in common. Compare rollouts of the same scenarios.")
    states = [_state(tasks[task]) for _, tasks in sides for task in common]
    names = _names(pattern for pattern in states if pattern is not None)
    current, *earlier = [_Counted(side, tasks, common, names) for side, tasks in sides]
    if not earlier:
        return FailureMap(now=current.out(), before=None, patterns=_patterns(current, None), lost_tasks=0, lost=[])
    [past] = earlier
    lost = [_lost(task, current, past) for task in current.tasks if current.patterns[task] and not past.patterns[task]]
    return FailureMap(
        now=current.out(),
        before=past.out(),
        patterns=_patterns(current, past),
        lost_tasks=len(lost),
        lost=sorted(lost, key=lambda task: task.scenario_id)[:_MOST_LOST],
    )


def _patterns(now: "_Counted", before: "_Counted | None") -> list[FailurePatternOut]:
    """Return the patterns, those of most tasks on both sides first."""
    sides = [now] if before is None else [now, before]
    counts = Counter(pattern for side in sides for pattern in side.patterns.values() if pattern is not None)
    return [
        FailurePatternOut(
            id=pattern.id,
            sentence=pattern.sentence,
            now=now.count(pattern.id),
            before=None if before is None else before.count(pattern.id),
            became=[] if before is None else _became(now, before, pattern),
            rollouts=now.rollouts(pattern),
            before_rollouts=[] if before is None else before.rollouts(pattern),
        )
        for pattern in sorted(counts, key=lambda pattern: (-counts[pattern], pattern.id))
    ]


def _became(now: "_Counted", before: "_Counted", pattern: Pattern) -> list[BecameOut]:
    """Return what the tasks became that had the pattern, the most frequent first."""
    counts = Counter(_id(now.patterns[task]) for task in before.tasks if before.patterns[task] == pattern)
    ranked = sorted(counts, key=lambda id: (-counts[id], id or ""))
    return [BecameOut(pattern=id, tasks=counts[id]) for id in ranked]


def _lost(task: str, now: "_Counted", before: "_Counted") -> LostTaskOut:
    failed, solved = (
        next(attempt for attempt in side.tasks[task] if side.name(attempt.pattern) == side.patterns[task])
        for side in (now, before)
    )
    pattern = now.patterns[task]
    assert pattern is not None
    return LostTaskOut(
        scenario_id=failed.scenario_id,
        pattern=pattern.id,
        trajectory_id=failed.id,
        before_trajectory_id=solved.id,
    )


async def _tasks(database: Database, side: FailureSide) -> Tasks:
    """Return the rollouts of a side by task, in the order in which they were saved. Raises NotFound without any."""
    milestones = registry.traits(side.environment).milestones
    tasks: dict[str, list[Attempt]] = defaultdict(list)
    async with database() as tx:
        rows = await tx.stream(_query(side), execution_options={"yield_per": _ROWS})
        async for row in rows:
            tasks[row.task].append(_attempt(row, milestones))
    if not tasks:
        raise NotFound(side.nothing)
    return tasks


def _query(side: FailureSide) -> Select[Any]:
    """Select what patterns are read from, without the messages of successes."""
    row = Trajectory
    empty: ColumnElement[Any] = literal_column("'[]'::jsonb")
    messages = [case((row.success.is_(True), empty), else_=column).label(column.key) for column in _CONVERSATION]
    task = func.concat(row.scenario_id, " ", func.md5(cast(row.scenario, Text))).label("task")
    return select(task, *_COLUMNS, *messages).where(*side.rollouts()).order_by(row.seq)


def _attempt(row: Any, milestones: Mapping[str, str]) -> Attempt:
    messages = row.messages
    if row.additional_histories:
        messages = transcript([messages, *(history["messages"] for history in row.additional_histories)])
    pattern = pattern_of(SimpleNamespace(**{**row._mapping, "messages": messages}), milestones)
    if pattern is None:
        return Attempt(row.id, row.scenario_id, None)
    why = row.why_no_success if row.error is None else shortened(row.error, _LONGEST)
    reason = None if row.error is not None else shortened(row.score_explanation or "", _LONGEST) or None
    return Attempt(row.id, row.scenario_id, pattern, why, reason)


class _Counted:
    """The tasks of a side, each with the pattern that it counts for, or None if it is solved."""

    def __init__(self, side: FailureSide, tasks: Tasks, common: Iterable[str], names: Mapping[str, Pattern]) -> None:
        self._side, self._all, self._names = side, len(tasks), names
        self.tasks = {task: tasks[task] for task in sorted(common)}
        self.patterns = {task: self.name(_state(attempts)) for task, attempts in self.tasks.items()}
        self._counts = Counter(map(_id, self.patterns.values()))

    def count(self, id: str | None) -> TaskCountOut:
        """Return the number of tasks of a pattern, or of the solved ones."""
        tasks, of = self._counts[id], len(self.tasks)
        low, high = wilson(tasks / of, of)
        return TaskCountOut(tasks=tasks, share=IntervalOut(mean=tasks / of, low=low, high=high))

    def rollouts(self, pattern: Pattern) -> list[FailedRolloutOut]:
        """Return the first rollouts with a pattern, of the tasks that count for it."""
        tasks = [attempts for task, attempts in self.tasks.items() if self.patterns[task] == pattern]
        rollouts = [one for attempts in tasks for one in attempts if self.name(one.pattern) == pattern]
        rollouts.sort(key=lambda rollout: (rollout.scenario_id, rollout.id))
        return [
            FailedRolloutOut(trajectory_id=one.id, scenario_id=one.scenario_id, why=one.why, reason=one.reason)
            for one in rollouts[:_MOST_ROLLOUTS]
        ]

    def out(self) -> FailureSideOut:
        """Return the side with its counts."""
        return FailureSideOut.model_validate(
            {name: getattr(self._side, name) for name in _SIDE}
            | {"tasks": len(self.tasks), "all_tasks": self._all, "solved": self.count(None)}
            | {"rollouts": sum(map(len, self.tasks.values()))}
        )

    def name(self, pattern: Pattern | None) -> Pattern | None:
        """Return the pattern as it is shown: by itself, or together with others of its ending."""
        return None if pattern is None else self._names.get(pattern.id) or other_pattern(pattern.ending)


def _state(attempts: Sequence[Attempt]) -> Pattern | None:
    """Return the commonest pattern of a task's failures, the first by id of equally common ones; None if more than half
    of its rollouts are successes."""
    failures = [attempt.pattern for attempt in attempts if attempt.pattern is not None]
    if 2 * len(failures) < len(attempts):
        return None
    counts = Counter(map(_id, failures))
    return min(failures, key=lambda pattern: (-counts[pattern.id], pattern.id, pattern.sentence))


def _id(pattern: Pattern | None) -> str | None:
    return None if pattern is None else pattern.id


def _names(states: Iterable[Pattern]) -> dict[str, Pattern]:
    """Return the patterns that are shown by themselves, by id, those of most tasks first."""
    sentences: dict[str, list[str]] = defaultdict(list)
    for pattern in states:
        sentences[pattern.id].append(pattern.sentence)
    ranked = sorted(sentences, key=lambda id: (-len(sentences[id]), id))
    return {id: Pattern(id, min(sentences[id])) for id in ranked[:MOST_PATTERNS]}
