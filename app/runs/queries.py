"""Reads runs for the API. Every query uses an index and has a limit."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    Row,
    ScalarSelect,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by
from sqlalchemy.orm import InstrumentedAttribute, defer

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import (
    Checkpoint,
    Evaluation,
    Iteration,
    JudgeCall,
    Reflection,
    Run,
    Trajectory,
    WebhookDelivery,
)
from learnloop_service.app.domain.stored_request import StoredModel
from learnloop_service.app.domain.supervised import MARK, METRICS
from learnloop_service.app.errors import NotFound, existing
from learnloop_service.app.runs.diagnoses import causes_of
from learnloop_service.app.runs.ledger import SUMS, Totals, sums_of, totals_of
from learnloop_service.app.runs.verdicts import EVALUATION, LOSSES, Judged, verdicts
from learnloop_service.app.statistics.verdict import RunVerdict

_Entity = TypeVar("_Entity")
SHOWN_ITERATIONS = 200
"""Maximum number of iterations that are shown with a run, the newest ones, and of iterations with evaluations."""

_REWARDS = ("mean", "median", "min", "max", "count")
_BULKY = {"messages", "tokens", "tools", "score_explanation", "score_parts", "reward_parts"}
_WHOLE_BYTES = 1_000
_LONGEST = 4_000
"""Maximum number of characters of a value of an outcome or task in a list."""
_MOST_VALUES = 64


def _cut(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a JSON object whose long values are cut, which makes them texts. An object that is short, at least when
    compressed, stays as it is."""
    entries = select(func.jsonb_each(column).table_valued("key", "value")).limit(_MOST_VALUES).subquery()
    text = type_coerce(entries.c.value, JSONB).op("#>>")(literal_column("'{}'::text[]"))
    shortened = func.to_jsonb(func.concat(func.left(text, _LONGEST), "…"))
    value = case((func.length(text) > _LONGEST, shortened), else_=entries.c.value)
    cut = select(func.coalesce(func.jsonb_object_agg(entries.c.key, value), literal_column("'{}'::jsonb")))
    return case((func.pg_column_size(column) < _WHOLE_BYTES, column), else_=cut.scalar_subquery())


def _cut_parts(column: ColumnElement[Any], *parts: str) -> ColumnElement[Any]:
    cut = func.jsonb_build_object(*(piece for part in parts for piece in (part, _cut(column[part]))))
    return case((func.pg_column_size(column) < _WHOLE_BYTES, column), else_=cut)


_CUT = {
    "outcome": _cut(Trajectory.__table__.c.outcome),
    "scenario": _cut_parts(Trajectory.__table__.c.scenario, "task", "reference"),
}
_COMPACT_COLUMNS: list[ColumnElement[Any]] = [
    type_coerce(_CUT[column.name], JSONB).label(column.name) if column.name in _CUT else column
    for column in Trajectory.__table__.columns
    if column.name not in _BULKY
]


class RunFigures(NamedTuple):
    """A run with its figures. The lists hold dicts in the API's format."""

    run: Run
    iterations: list[dict[str, Any]]
    """The newest iterations, ascending."""
    evaluations: list[dict[str, Any]]
    """Evaluations of the baseline, the best checkpoint and the newest iterations that were evaluated, ascending."""
    deliveries: dict[str, int]
    """Number of webhook deliveries by state."""
    used: Totals
    """Sums of the run's ledger."""
    losses: Any
    """The losses of a run on demonstrations only (app/runs/verdicts.py), or None."""


class ShownIteration(NamedTuple):
    """An iteration with the trajectory of its showcase, if any, without messages and tools."""

    row: Iteration
    showcase: Trajectory | None


def _object(columns: Mapping[str, ColumnElement[Any]]) -> ColumnElement[Any]:
    return func.json_build_object(*(part for name in columns for part in (literal_column(f"'{name}'"), columns[name])))


def _list(of: ColumnElement[Any], *order: InstrumentedAttribute[Any]) -> Select[Any]:
    """Select all rows as one JSON list, so that a run's figures take one round trip."""
    rows = func.json_agg(aggregate_order_by(of, *order) if order else of)
    return select(func.coalesce(rows, literal_column("'[]'::json")))


def _list_of(grouped: Select[Any, Any], *names: str) -> ScalarSelect[Any]:
    rows = grouped.correlate(Run).subquery()
    return _list(_object({name: rows.c[name] for name in names})).scalar_subquery()


def _figures_query() -> Select[Run, Any, Any, Any, Any, Any]:
    since = Run.next_iteration - SHOWN_ITERATIONS
    names = ("iteration", "step", "success", "malformed", "no_signal", "lost_rollouts")
    point = {name: getattr(Iteration, name) for name in names}
    rewards = _object({name: getattr(Iteration, f"reward_{name}") for name in _REWARDS})
    metrics = Iteration.train_metrics
    supervised = case(
        (metrics.has_key(MARK), _object({name: metrics[of] for name, of in METRICS.items()})),
    )
    curve = _list(_object(point | {"rewards": rewards, "supervised": supervised}), Iteration.iteration)
    held_out = _list(
        _object({name: getattr(Evaluation, name) for name in EVALUATION}),
        *(getattr(Evaluation, name) for name in ("iteration", "split", "mode", "step")),
    )
    # Evaluations are rarer than iterations, so the newest ones are counted separately. The verdict needs those of the
    # best checkpoint, however old they are.
    evaluated = select(Evaluation.iteration).where(Evaluation.run_id == Run.id).correlate(Run).distinct()
    oldest = evaluated.order_by(Evaluation.iteration.desc()).offset(SHOWN_ITERATIONS - 1).limit(1).scalar_subquery()
    deliveries = (
        select(WebhookDelivery.state, func.count().label("deliveries"))
        .where(WebhookDelivery.run_id == Run.id)
        .group_by(WebhookDelivery.state)
    )
    return select(
        Run,
        curve.where(Iteration.run_id == Run.id, Iteration.iteration >= since).scalar_subquery(),
        held_out.where(
            Evaluation.run_id == Run.id,
            or_(
                Evaluation.iteration == 0,
                Evaluation.iteration >= func.coalesce(oldest, 0),
                Evaluation.step == Run.best_step,
            ),
        ).scalar_subquery(),
        _list_of(deliveries, "state", "deliveries"),
        _list_of(sums_of(cast(Any, Run.id)), *SUMS),
        LOSSES,
    ).where(Run.id == any_(bindparam("run_ids", type_=ARRAY(Text))))


_FIGURES = _figures_query()
"""Built once, because that takes longer than executing it."""


class RunQueries:
    """Read-only queries for runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def figures(self, run_ids: Sequence[str]) -> dict[str, RunFigures]:
        """Return the figures of those runs that exist, in one statement."""
        async with self._database() as tx:
            rows = (await tx.execute(_FIGURES, {"run_ids": run_ids})).all()
        return {run.id: _figures(run, *lists) for run, *lists in rows}

    async def curves(self, run_ids: Sequence[str], points: int) -> dict[str, list[float]]:
        """Return mean rewards by run, in the order of iterations, evenly thinned out to at most `points` per run."""
        every = func.greatest(1, (Run.next_iteration + points - 2) // points)
        query = (
            select(Iteration.run_id, func.array_agg(aggregate_order_by(Iteration.reward_mean, Iteration.iteration)))
            .join(Run, Run.id == Iteration.run_id)
            .where(Run.id == any_(bindparam("run_ids", type_=ARRAY(Text))))
            .where(Iteration.iteration > 0, Iteration.reward_mean.is_not(None), (Iteration.iteration - 1) % every == 0)
            .group_by(Iteration.run_id)
        )
        async with self._database() as tx:
            rows = await tx.execute(query, {"run_ids": run_ids})
            return {run_id: [mean for mean in means if mean is not None] for run_id, means in rows}

    async def verdicts(self, runs: Sequence[Run]) -> dict[str, RunVerdict]:
        """Return the verdicts on those runs, by run."""
        async with self._database() as tx:
            return await verdicts(tx, {run.id: Judged(run.best_step, causes_of(run)) for run in runs})

    async def iterations(self, run_id: str, *, after: int, limit: int) -> Sequence[ShownIteration]:
        """Return iterations in order, from the one after `after`."""
        of_iteration = and_(Reflection.run_id == Iteration.run_id, Reflection.iteration == Iteration.iteration)
        query = (
            select(Iteration, Trajectory)
            .outerjoin(Reflection, of_iteration)
            .outerjoin(Trajectory, Trajectory.id == Reflection.trajectory_id)
            .options(defer(Trajectory.messages), defer(Trajectory.tools), defer(Trajectory.additional_histories))
            .where(Iteration.run_id == run_id, Iteration.iteration > after)
            .order_by(Iteration.iteration)
            .limit(limit)
        )
        async with self._database() as tx:
            return [ShownIteration(*row) for row in await tx.execute(query)]

    async def reflection(self, run_id: str, iteration: int | None) -> Reflection:
        """Return what was learned after an iteration; None means the newest. Raises NotFound."""
        # a fork starts with its parent's reflection as -1
        of_run = (Reflection.run_id == run_id, Reflection.iteration >= 0)
        query = select(Reflection).where(*of_run).order_by(Reflection.iteration.desc()).limit(1)
        if iteration is not None:
            query = query.where(Reflection.iteration == iteration)
        rows = await self._rows(query)
        if not rows:
            where = "yet" if iteration is None else f"for iteration {iteration}"
            raise NotFound(f"Run {run_id!r} has no node scores {where}.")
        return rows[0]

    async def judge_calls(self, run_id: str, *, iteration: int | None, after: int, limit: int) -> Sequence[JudgeCall]:
        """Return judge calls in order, from the one after `after`."""
        query = select(JudgeCall).where(JudgeCall.run_id == run_id, JudgeCall.id > after)
        if iteration is not None:
            query = query.where(JudgeCall.iteration == iteration)
        return await self._rows(query.order_by(JudgeCall.iteration, JudgeCall.id).limit(limit))

    async def checkpoints(self, run_id: str, *, after: int, limit: int) -> Sequence[Checkpoint]:
        """Return checkpoints in order of steps, from the one after `after`."""
        return await self._rows(
            select(Checkpoint)
            .where(Checkpoint.run_id == run_id, Checkpoint.step > after)
            .order_by(Checkpoint.step)
            .limit(limit)
        )

    async def trajectories(
        self,
        run_id: str,
        *,
        after: int,
        limit: int,
        iteration: Sequence[int] | None = None,
        where: Sequence[ColumnElement[bool]] = (),
        **filters: str | None,
    ) -> Sequence[Row[Any]]:
        """Return trajectories without their bulky columns in the order of saving, from the one after `after`.

        `iteration` are the iterations to match, and `filters` columns with the values to match; None matches any.
        `where` are further conditions.
        """
        query = select(*_COMPACT_COLUMNS).where(Trajectory.run_id == run_id, Trajectory.seq > after, *where)
        if iteration is not None:
            query = query.where(Trajectory.iteration.in_(iteration))
        for name, value in filters.items():
            column: InstrumentedAttribute[Any] = getattr(Trajectory, name)
            query = query if value is None else query.where(column == value)
        async with self._database() as tx:
            return (await tx.execute(query.order_by(Trajectory.seq).limit(limit))).all()

    async def asked_as(
        self, promoted: str, *, project: str | None, before: int | None, limit: int
    ) -> Sequence[Row[Any]]:
        """Return trajectories of requests to a promoted name, newest first, that belong to one project or to any."""
        query = select(*_COMPACT_COLUMNS).where(Trajectory.asked_as == promoted)
        if project is not None:
            owner = func.coalesce(Run.model_project, Trajectory.project)
            query = query.outerjoin(Run, Run.id == Trajectory.run_id).where(owner == project)
        async with self._database() as tx:
            return (await tx.execute(newest_first(query, Trajectory.seq, before, limit))).all()

    async def trajectory(self, trajectory_id: str) -> Trajectory:
        """Return a trajectory. Raises NotFound."""
        async with self._database() as tx:
            return existing(await tx.get(Trajectory, trajectory_id), "trajectory", trajectory_id)

    async def tokens(self, trajectory_id: str) -> Sequence[Any]:
        """Return what the agent sampled in a trajectory, turn by turn. Raises NotFound."""
        query = select(Trajectory.tokens).where(Trajectory.id == trajectory_id)
        async with self._database() as tx:
            return existing((await tx.execute(query)).scalar_one_or_none(), "trajectory", trajectory_id)

    async def newest_trained(self, environment: str, project: str | None = None) -> Run | None:
        """Return the newest run on the environment that has a checkpoint, of one project or of all."""
        query = select(Run).where(Run.environment == environment, Run.best_step.is_not(None))
        if project is not None:
            query = query.where(Run.model_project == project)
        rows = await self._rows(query.order_by(Run.id.desc()).limit(1))
        return rows[0] if rows else None

    async def engine_of(self, backend: str, project: str, name: str) -> str | None:
        """Return the engine that has the model, according to its newest driven run; None if there is none."""
        async with self._database() as tx:
            return (await tx.execute(selected_engine(backend, project, name))).scalar_one_or_none()

    async def first_model(self, backend: str, project: str, name: str) -> StoredModel | None:
        """Return the model as the first run that trained it was asked for; None if there is none."""
        query = (
            select(Run.request["model"])
            .where(Run.backend == backend, Run.model_project == project, Run.model_name == name)
            .order_by(Run.id)
            .limit(1)
        )
        async with self._database() as tx:
            model = (await tx.execute(query)).scalar_one_or_none()
        return None if model is None else StoredModel.model_validate(model)

    async def require_run(self, run_id: str) -> None:
        """Raise NotFound if the run does not exist."""
        await self.next_iteration(run_id)

    async def next_iteration(self, run_id: str) -> int:
        """Return the number of the iteration after the newest saved one. Raises NotFound."""
        query = select(Run.next_iteration).where(Run.id == run_id)
        async with self._database() as tx:
            return existing((await tx.execute(query)).scalar_one_or_none(), "run", run_id)

    async def held_out_seed(self, run_id: str) -> int:
        """Return the seed of a run's held-out scenarios. Raises NotFound."""
        async with self._database() as tx:
            return existing(await tx.get(Run, run_id), "run", run_id).stored_request.config.held_out_seed

    async def _rows(self, query: Select[_Entity]) -> Sequence[_Entity]:
        async with self._database() as tx:
            return (await tx.execute(query)).scalars().all()


def selected_engine(backend: str, project: str, name: str) -> Select[str | None]:
    """Select the engine that has the model, according to its newest driven run; no row if there is none."""
    return (
        select(Run.engine)
        .where(Run.backend == backend, Run.model_project == project, Run.model_name == name)
        .where(Run.engine.is_not(None))
        .order_by(Run.id.desc())
        .limit(1)
    )


def _figures(
    run: Run, iterations: list[Any], evaluations: list[Any], deliveries: list[Any], sums: Any, losses: Any
) -> RunFigures:
    by_state = {row["state"]: row["deliveries"] for row in deliveries}
    return RunFigures(run, iterations, evaluations, by_state, totals_of(sums), losses)
