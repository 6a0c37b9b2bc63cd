"""Counts how a run's rollouts ended and averages the parts of their rewards, over its iterations.

The size of the result is bounded: iterations share columns, and rare ends and parts share a name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, Float, Select, case, cast, func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run, Trajectory
from learnloop_service.app.runs.rollout_filters import END
from learnloop_service.app.schemas.trajectories import EndCounts, Outcomes, PartMeans
from learnloop_service.training.inclusion import whole

MAX_COLUMNS = 120
MAX_NAMES = 8
OTHER = "other"
_WEIGHT: ColumnElement[float] = cast(1.0 / func.coalesce(Trajectory.inclusion, 1.0), Float)


async def outcomes(database: Database, run_id: str, kind: str) -> Outcomes:
    """Return the figures of a run's rollouts of a kind, weighted and without replacements (training/inclusion.py).

    A count is the share of the weight times the number of rollouts.
    """
    row = Trajectory
    of_kind = (row.run_id == run_id, row.kind == kind, row.iteration.is_not(None), row.replaces.is_(None))
    async with database() as tx:
        next_iteration = (await tx.execute(select(Run.next_iteration).where(Run.id == run_id))).scalar_one()
        every = -(-max(1, next_iteration) // MAX_COLUMNS)
        column: ColumnElement[int] = func.div(Trajectory.iteration, every)
        weights = (func.sum(_WEIGHT), func.sum(case((row.reward.is_not(None), _WEIGHT), else_=0.0)), func.count())
        ended = select(column, END, *weights).where(*of_kind).group_by(column, END)
        rows = [(int(index), end or "", *figures) for index, end, *figures in await tx.execute(ended)]
        sums = [(int(index), name, total) for index, name, total in await tx.execute(_parts(column, of_kind))]
    indices = sorted({index for index, *_ in rows})
    weight, scored, rollouts = (defaultdict[int, float](float) for _ in range(3))
    for index, _, *figures in rows:
        for total, figure in zip((weight, scored, rollouts), figures, strict=True):
            total[index] += figure
    parts = _by_name(sums, indices)
    shares = ((index, end, of_end * rollouts[index] / weight[index]) for index, end, of_end, *_ in rows)
    ends = _by_name(shares, indices)
    columns = [whole(of) for of in zip(*ends.values(), strict=True)]
    counts = [scored[index] for index in indices]
    return Outcomes(
        every=every,
        iterations=[min((index + 1) * every, max(1, next_iteration)) - 1 for index in indices],
        ends=[EndCounts(end=name, counts=[of[row] for of in columns]) for row, name in enumerate(ends)],
        parts=[PartMeans(part=name, means=_means(values, counts)) for name, values in parts.items()],
    )


def _means(sums: Sequence[float], counts: Sequence[float]) -> list[float | None]:
    return [value / count if count else None for value, count in zip(sums, counts, strict=True)]


def _parts(column: ColumnElement[int], of_kind: Sequence[ColumnElement[bool]]) -> Select[int, str, float]:
    """Select the sums of the parts of rewards by column and name."""
    part = func.jsonb_each_text(Trajectory.reward_parts).table_valued("key", "value")
    total = func.sum(cast(part.c.value, Float) * _WEIGHT)
    scored = Trajectory.reward.is_not(None)
    return (
        select(column, part.c.key, total)
        .select_from(Trajectory)
        .join(part, scored)
        .where(*of_kind)
        .group_by(column, part.c.key)
    )


def _by_name(figures: Iterable[tuple[int, str, float]], indices: Sequence[int]) -> dict[str, list[float]]:
    """Return the figures of each name by column, the name with the most first; rare names share one."""
    by_name: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for index, name, value in figures:
        by_name[name][index] += value
    ranked = sorted(by_name, key=lambda name: (-_size(by_name[name]), name))
    named: dict[str, Mapping[int, float]] = {name: by_name[name] for name in ranked[:MAX_NAMES]}
    if rest := ranked[MAX_NAMES:]:
        named[OTHER] = {index: sum(by_name[name][index] for name in rest) for index in indices}
    return {name: [values.get(index, 0) for index in indices] for name, values in named.items()}


def _size(values: Mapping[int, float]) -> float:
    return sum(abs(value) for value in values.values())
