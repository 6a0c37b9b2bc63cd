"""A run's tables as CSV (RFC 4180), with a column for each figure: iterations, held-out evaluations, and rollouts.

Nested figures have columns of their own, such as `timing.rollout_s`. Other objects and lists are JSON text, as in the
Parquet files (app/results/documents.py).
"""

import csv
import io
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, Text, cast, func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.json_text import dumps
from learnloop_service.app.db.tables import Evaluation, Iteration, Run, Trajectory
from learnloop_service.app.errors import existing
from learnloop_service.training.statistics.shares import wilson

Table = Literal["iterations", "evaluations", "rollouts"]
SmallTable = Literal["iterations", "evaluations"]
_ROWS_AT_ONCE = 200
_BYTES_AT_ONCE = 1_000_000
"""A piece has more only if a single row has."""
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")
"""Beginnings of cells that a spreadsheet can take for a formula, also with full-width signs."""
_ITERATION = (
    "iteration", "step", "best_step", "reward_mean", "reward_median", "reward_min", "reward_max", "reward_count",
    "success", "malformed", "failed_rollouts", "no_signal", "sampled_step", "staleness", "finished_at",
)  # fmt: skip
_NESTED = ("timing", "train_metrics", "skipped_groups", "lost_rollouts")
_EVALUATION = ("iteration", "split", "mode", "step", "scenarios", "success", "mean_reward", "malformed", "turns")
_ROLLOUT = (
    "id", "kind", "iteration", "split", "mode", "model", "step", "scenario_id", "score", "reward", "advantage",
    "success", "error", "failure", "turns", "prompt_tokens", "completion_tokens", "seconds", "started_at", "scenario",
    "outcome", "inclusion", "replaces",
)  # fmt: skip


class Tables:
    """Reads the tables of runs, except that of their rollouts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, run_id: str, table: SmallTable) -> AsyncIterator[bytes]:
        """Return the table's bytes, piece by piece. Raises NotFound, before the first piece."""
        async with self._database() as tx:
            existing(await tx.get(Run, run_id), "run", run_id)
        read: Mapping[SmallTable, Callable[[str], AsyncIterator[bytes]]] = {
            "iterations": self._iterations,
            "evaluations": self._evaluations,
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
            difference = row.difference or {}
            figures = [getattr(row, name) for name in _EVALUATION]
            differences = [difference.get(name) for name in of_difference]
            yield _lines([[*figures, *wilson(row.success, row.scenarios), *differences]])


class RolloutTable:
    """The table of a run's rollouts, in the order of saving, read in pieces of about a megabyte.

    No connection is held while a slow reader takes them.
    """

    def __init__(self, run_id: str) -> None:
        self._of_run = Trajectory.run_id == run_id
        self._sizes: deque[tuple[int, int]] = deque()
        """The next rollouts: their `seq` and about how many bytes they have."""
        self._after = -2

    async def next_piece(self, database: Database) -> bytes | None:
        """Return the next lines, or None after the last ones."""
        if self._after == -2:
            self._after = -1
            return _lines([_ROLLOUT])
        async with database() as tx:
            if not self._sizes:
                self._sizes.extend((row.seq, row.size) for row in await tx.execute(self._next_sizes()))
            if not self._sizes:
                return None
            last, total = self._sizes.popleft()
            while self._sizes and total + self._sizes[0][1] <= _BYTES_AT_ONCE:
                last, size = self._sizes.popleft()
                total += size
            columns: list[ColumnElement[Any]] = [getattr(Trajectory, name) for name in _ROLLOUT]
            these = (self._of_run, Trajectory.seq > self._after, Trajectory.seq <= last)
            rows = (await tx.execute(select(*columns).where(*these).order_by(Trajectory.seq))).all()
        self._after = last
        return _lines(rows)

    def _next_sizes(self) -> Select[tuple[int, int]]:
        """Select the next rollouts that are stored in about a megabyte, with their bytes as text. Postgres decompresses
        a rollout to know these, which takes too long for more rollouts than are read soon."""
        stored = func.pg_column_size(Trajectory.scenario) + func.pg_column_size(Trajectory.outcome)
        before = func.sum(stored).over(order_by=Trajectory.seq) - stored
        first = select(Trajectory.seq, Trajectory.scenario, Trajectory.outcome, before.label("before")).where(
            self._of_run, Trajectory.seq > self._after
        )
        rollout = first.order_by(Trajectory.seq).limit(_ROWS_AT_ONCE).subquery().c
        size = func.octet_length(cast(rollout.scenario, Text)) + func.octet_length(cast(rollout.outcome, Text))
        return select(rollout.seq, size.label("size")).where(rollout.before < _BYTES_AT_ONCE).order_by(rollout.seq)


def _flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested figures with names such as `timing.rollout_s`."""
    flat: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


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
