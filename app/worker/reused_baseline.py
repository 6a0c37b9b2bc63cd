"""A run's baseline, taken over from an earlier run of the project instead of made again.

What is taken over are copies of rows, in the transaction that also moves the run on: the run has them whole or not at
all, its figures can be traced to its own trajectories, and the earlier run can be deleted. Nothing was sampled for it,
so nothing counts as used.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Insert, cast, func, insert, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from app.claims.lease import Lease, require
from app.db.session import Sessions
from app.db.tables import Base, Checkpoint, Evaluation, Event, Iteration, Journal, Reflection, Run, Trajectory
from app.domain.event_types import EventType
from app.events.log import append

_BASELINE = 0
"""Its iteration."""
_TOOK_NO_TIME = {f"{name}_s": 0.0 for name in ("rollout", "judge", "train", "reflect", "evaluate", "total", "ahead")}


async def take_over_baseline(
    sessions: Sessions, lease: Lease[Run], key: str | None, model: str, *, wanted: bool
) -> bool:
    """Note what decides the run's baseline and, if that is `wanted`, take it over from a run with the same key; returns
    whether that was done. A second call changes nothing. Raises LeaseLost.

    `model` is what the backend calls the policy that would be evaluated.
    """
    async with sessions.begin() as session:
        await require(session, lease)
        run = await session.get_one(Run, lease.id)
        if run.next_iteration > _BASELINE:  # the reply to the call before was lost
            return True
        if await _begun(session, run):
            if run.baseline_key != key:  # its rollouts are not all made by the same code on the same machine
                run.baseline_key = None
            return False
        run.baseline_key = key
        if key is None or not wanted or (earlier := await _earlier(session, run, key)) is None:
            return False
        trajectories = await _copy(session, earlier, run, model)
        await _advance(session, earlier, run, lease, trajectories)
        return True


async def _begun(session: AsyncSession, run: Run) -> bool:
    """Whether a worker before us has made some of it."""
    entry = select(Journal.name).where(Journal.run_id == run.id).limit(1)
    return (await session.execute(entry)).scalar_one_or_none() is not None


async def _earlier(session: AsyncSession, run: Run, key: str) -> Run | None:
    """The oldest run with such a baseline, kept from being deleted or pruned until the transaction ends.

    A rollout that failed says something about that time, not about the policy: such a baseline is not taken.
    """
    query = (
        select(Run)
        .join(Iteration, Iteration.run_id == Run.id)
        .where(
            Run.model_project == run.model_project,
            Run.baseline_key == key,
            Run.id != run.id,
            Run.reproducible.is_(True),
            ~Run.pruned.has_key("trajectories"),
            ~Run.pruned.has_key("events"),
            Iteration.iteration == _BASELINE,
            Iteration.failed_rollouts == 0,
        )
        .order_by(Run.id)
        .limit(1)
        .with_for_update(of=Run, read=True, key_share=True, skip_locked=True)
    )
    return (await session.execute(query)).scalar_one_or_none()


async def _copy(session: AsyncSession, earlier: Run, run: Run, model: str) -> Mapping[str, str]:
    """Copy the rows of the baseline; returns the new ids of its trajectories."""
    made = select(Trajectory.id).where(Trajectory.run_id == earlier.id, Trajectory.iteration == _BASELINE)
    ids = {id: str(ULID()) for id in (await session.execute(made)).scalars()}

    def new(id: ColumnElement[str]) -> ColumnElement[str]:
        return func.jsonb_extract_path_text(cast(literal(ids, JSONB), JSONB), id)

    full_name = f"{run.model_project}/{run.model_name}"
    timing = Iteration.timing.concat(literal(_TOOK_NO_TIME, JSONB))
    for rows in (
        _copied(Iteration, earlier, run, timing=timing, finished_at=func.now()),
        _copied(Evaluation, earlier, run),
        _copied(Trajectory, earlier, run, id=new(Trajectory.id.expression), model=full_name),
        _copied(Reflection, earlier, run, trajectory_id=new(Reflection.trajectory_id.expression)),
        _copied(Checkpoint, earlier, run, model=model, is_best=True, created_at=func.now(), deleted_at=None),
    ):
        await session.execute(rows)
    return ids


def _copied(table: type[Base], earlier: Run, run: Run, **changed: Any) -> Insert:
    """The rows that one run's baseline has in a table, for another run and with other values in some columns. What the
    database numbers is numbered anew, in the same order."""
    columns = table.__table__.c
    values = {
        column.name: _value(changed[column.name], column) if column.name in changed else column
        for column in columns
        if column.identity is None
    }
    values["run_id"] = literal(run.id, columns.run_id.type)
    rows = select(*values.values()).where(columns.run_id == earlier.id, columns.iteration == _BASELINE)
    numbered = [column for column in columns if column.identity is not None]
    return insert(table).from_select(list(values), rows.order_by(*numbered), include_defaults=False)


def _value(value: Any, column: ColumnElement[Any]) -> ColumnElement[Any]:
    return value if isinstance(value, ColumnElement) else literal(value, column.type)


async def _advance(
    session: AsyncSession, earlier: Run, run: Run, lease: Lease[Run], trajectories: Mapping[str, str]
) -> None:
    """Move the run past its baseline, with the event that says so. What counts as made or used stays as it is."""
    baseline = await session.get_one(Iteration, (run.id, _BASELINE))
    checkpoint = await session.get_one(Checkpoint, (run.id, baseline.step))
    run.baseline_run_id = earlier.baseline_run_id or earlier.id
    run.next_iteration = _BASELINE + 1
    run.claims = 0
    run.step = run.best_step = baseline.step
    run.best_success = checkpoint.success
    saved = select(Event.data).where(
        Event.run_id == earlier.id, Event.type == EventType.ITERATION_COMPLETED, Event.iteration == _BASELINE
    )
    data = {**(await session.execute(saved)).scalar_one(), "baseline_run_id": run.baseline_run_id}
    if "trajectory_id" in data:
        data["trajectory_id"] = trajectories[data["trajectory_id"]]
    await append(session, run.id, EventType.ITERATION_COMPLETED, lease.actor, data, iteration=_BASELINE)
