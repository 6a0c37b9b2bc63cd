"""A run's tables as CSV (RFC 4180), with a column for each figure: iterations, held-out evaluations, and rollouts.

Nested figures have columns of their own, such as `timing.rollout_s`. Other objects and lists are JSON text, as in the
Parquet files (app/results/documents.py).
"""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, select

from app.db.database import Database
from app.db.json_text import dumps
from app.db.tables import Evaluation, Iteration, Run, Trajectory
from app.errors import NotFound
from training.statistics.shares import wilson

Table = Literal["iterations", "evaluations", "rollouts"]
_ROWS_AT_ONCE = 500
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ITERATION = (
    "iteration", "step", "best_step", "reward_mean", "reward_median", "reward_min", "reward_max", "reward_count",
    "success", "malformed", "failed_rollouts", "no_signal", "sampled_step", "staleness", "finished_at",
)  # fmt: skip
_NESTED = ("timing", "train_metrics", "skipped_groups", "lost_rollouts")
_EVALUATION = ("iteration", "split", "mode", "step", "scenarios", "success", "mean_reward", "malformed", "turns")
_ROLLOUT = (
    "id", "kind", "iteration", "split", "mode", "model", "step", "scenario_id", "score", "reward", "advantage",
    "success", "error", "failure", "turns", "prompt_tokens", "completion_tokens", "seconds", "started_at", "scenario",
    "outcome",
)  # fmt: skip


class Tables:
    """Reads the tables of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, run_id: str, table: Table) -> AsyncIterator[bytes]:
        """Return the table's bytes, piece by piece. Raises NotFound, before the first piece."""
        async with self._database() as tx:
            if await tx.get(Run, run_id) is None:
                raise NotFound(f"There is no run {run_id!r}.")
        read: Mapping[Table, Callable[[str], AsyncIterator[bytes]]] = {
            "iterations": self._iterations,
            "evaluations": self._evaluations,
            "rollouts": self._rollouts,
        }
        return read[table](run_id)

    async def _iterations(self, run_id: str) -> AsyncIterator[bytes]:
        query = select(Iteration).where(Iteration.run_id == run_id).order_by(Iteration.iteration)
        async with self._database() as tx:
            rows = (await tx.execute(query)).scalars().all()
        flat = [_flat({name: getattr(row, name) for name in (*_ITERATION, *_NESTED)}) for row in rows]
        nested = sorted({name for row in flat for name in row} - set(_ITERATION))
        header = [*_ITERATION, *nested]
        yield _lines([header, *([row.get(name) for name in header] for row in flat)])

    async def _evaluations(self, run_id: str) -> AsyncIterator[bytes]:
        order = (getattr(Evaluation, name) for name in ("iteration", "split", "mode", "step"))
        query = select(Evaluation).where(Evaluation.run_id == run_id).order_by(*order)
        async with self._database() as tx:
            rows = (await tx.execute(query)).scalars().all()
        of_difference = ("scenarios", "changed", "mean", "low", "high", "smallest")
        header = [*_EVALUATION, "success_low", "success_high", *(f"difference.{name}" for name in of_difference)]
        yield _lines([header])
        for row in rows:
            found = row.difference or {}
            figures = [getattr(row, name) for name in _EVALUATION]
            differences = [found.get(name) for name in of_difference]
            yield _lines([[*figures, *wilson(row.success, row.scenarios), *differences]])

    async def _rollouts(self, run_id: str) -> AsyncIterator[bytes]:
        """Yield pages in the order of saving. No connection is held while a slow reader takes them."""
        columns: list[ColumnElement[Any]] = [getattr(Trajectory, name) for name in ("seq", *_ROLLOUT)]
        query = select(*columns).where(Trajectory.run_id == run_id).order_by(Trajectory.seq).limit(_ROWS_AT_ONCE)
        yield _lines([_ROLLOUT])
        after = -1
        while True:
            async with self._database() as tx:
                rows = (await tx.execute(query.where(Trajectory.seq > after))).all()
            if not rows:
                return
            after = rows[-1][0]
            yield _lines(row[1:] for row in rows)


def _flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested figures with names such as `timing.rollout_s`."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            found[name] = value
    return found


def _lines(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return a value as CSV has it. Spreadsheets must not take text that others wrote for a formula."""
    if isinstance(value, dict | list):
        return dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
