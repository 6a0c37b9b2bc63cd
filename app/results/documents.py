"""A run's results as documents, each made from the run's rows.

The files of the results folder and the downloads are identical, because both come from here. Every saved iteration has
`iterN_rewards.json`, `iterN_trajectories.jsonl` and, with the extra `tables`, `iterN_trajectories.parquet`. It also has
`iterN_email.json` if the environment shows emails, and `iterN_node_scores.json` if it scores nodes. A completed run
with emails has `final_email.json`, the last iteration's email.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Iteration, Reflection, Run, Trajectory
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.errors import NotFound, existing
from learnloop_service.app.results.parquet import TrajectoryTable
from learnloop_service.app.results.showcase import showcase_email
from learnloop_service.app.schemas.trajectories import TrajectoryOut
from learnloop_service.environment.installation import needs_extra

FINAL_EMAIL = "final_email.json"
_EMAIL, _NODE_SCORES, _REWARDS = "email.json", "node_scores.json", "rewards.json"
_LINES, _TABLE = "trajectories.jsonl", "trajectories.parquet"
_NAME = re.compile(
    rf"iter(0|[1-9][0-9]{{0,8}})_({'|'.join(map(re.escape, (_EMAIL, _NODE_SCORES, _REWARDS, _LINES, _TABLE)))})"
)
_CONTENT_TYPES = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
_ROWS_AT_ONCE = 32
"""Number of trajectories in memory at the same time, and in a row group."""
_FIGURES = ("split", "mode", "step", "scenarios", "success", "mean_reward", "malformed", "turns", "difference")


class _Extent(NamedTuple):
    """Which documents a run has."""

    iterations: int
    parts: Sequence[str]
    has_final: bool

    @property
    def names(self) -> list[str]:
        """Names in the order in which the documents were produced."""
        names = [f"iter{number}_{part}" for number in range(self.iterations) for part in self.parts]
        return [*names, FINAL_EMAIL] if self.has_final else names


class _Form(Protocol):
    """A document of trajectories in progress. The document is the concatenated results of `write` and `close`."""

    def write(self, rows: Sequence[Trajectory]) -> bytes: ...

    def close(self) -> bytes: ...


def content_type(name: str) -> str:
    """Return the content type of the document with that name."""
    return _CONTENT_TYPES[name.rpartition(".")[2]]


class Results:
    """Reads the results of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def names(self, run_id: str) -> list[str]:
        """Return all names, in the order in which the documents were produced. Raises NotFound."""
        return (await self._extent(run_id)).names

    async def open(self, run_id: str, name: str) -> AsyncIterator[bytes]:
        """Return the document's bytes, piece by piece. Raises NotFound, before the first piece."""
        extent = await self._extent(run_id)
        if name not in extent.names:
            missing = "" if _tables() or not name.endswith(_TABLE) else f" Parquet needs {needs_extra('tables')}."
            raise NotFound(f"Run {run_id!r} has no result {name!r}.{missing}")
        return (piece async for [piece] in self._pieces(run_id, [name], extent))

    async def open_all(
        self, run_id: str, but: Container[str], *, completed: bool = False
    ) -> list[tuple[Sequence[str], AsyncIterator[Sequence[bytes]]]]:
        """Return the names and pieces of all documents except `but`. `completed` says that the run is about to be
        completed.

        An iteration's trajectories come in both formats together, because reading them takes longest. Raises NotFound.
        """
        extent = await self._extent(run_id, completed=completed)
        missing = (name for name in extent.names if name not in but)
        together = [list(names) for _, names in groupby(missing, lambda name: name.partition(".")[0])]
        return [(names, self._pieces(run_id, names, extent)) for names in together]

    def _pieces(self, run_id: str, names: Sequence[str], extent: _Extent) -> AsyncIterator[Sequence[bytes]]:
        """Return the pieces of a document, or of an iteration's trajectories in several formats."""
        match = _NAME.fullmatch(names[0])
        if match is None:
            return _alone(partial(self._email, run_id, extent.iterations - 1))
        iteration = int(match[1])
        if match[2] in _FORMS:
            return self._forms(run_id, iteration, [_FORMS[name.partition("_")[2]] for name in names])
        make = {_EMAIL: self._email, _NODE_SCORES: self._node_scores, _REWARDS: self._rewards}[match[2]]
        return _alone(partial(make, run_id, iteration))

    async def _extent(self, run_id: str, *, completed: bool = False) -> _Extent:
        """Return which documents the run has. Every iteration has the same kinds as the baseline."""
        about_run = select(Run.next_iteration, Run.status).where(Run.id == run_id)
        about_baseline = (
            select(Trajectory.outcome.has_key("email"), Reflection.state.has_key("node_scores"))
            .join_from(Reflection, Trajectory, Trajectory.id == Reflection.trajectory_id)
            .where(Reflection.run_id == run_id, Reflection.iteration == 0)
        )
        async with self._database() as tx:
            run = (await tx.execute(about_run)).one_or_none()
            emails, scores = (await tx.execute(about_baseline)).one_or_none() or (False, False)
        iterations, status = existing(run, "run", run_id)
        optional = [part for part, there in ((_EMAIL, emails), (_NODE_SCORES, scores)) if there]
        ended = iterations > 0 and (completed or status == RunStatus.COMPLETED)
        return _Extent(iterations, (*optional, _REWARDS, _LINES, *_tables()), emails and ended)

    async def _email(self, run_id: str, iteration: int) -> bytes:
        query = (
            select(Trajectory)
            .join(Reflection, Reflection.trajectory_id == Trajectory.id)
            .where(Reflection.run_id == run_id, Reflection.iteration == iteration)
        )
        async with self._database() as tx:
            row = (await tx.execute(query)).scalar_one()
        return _document(showcase_email(row).model_dump())

    async def _node_scores(self, run_id: str, iteration: int) -> bytes:
        async with self._database() as tx:
            reflection = await tx.get_one(Reflection, (run_id, iteration))
        return _document(reflection.state["node_scores"])

    async def _rewards(self, run_id: str, iteration: int) -> bytes:
        held_out = (
            select(Evaluation)
            .where(Evaluation.run_id == run_id, Evaluation.iteration == iteration)
            .order_by(Evaluation.split, Evaluation.mode, Evaluation.step)
        )
        async with self._database() as tx:
            row = await tx.get_one(Iteration, (run_id, iteration))
            evaluations = (await tx.execute(held_out)).scalars().all()
        rewards = {name: getattr(row, f"reward_{name}") for name in ("mean", "median", "min", "max", "count")}
        return _document(
            {"iteration": iteration, "step": row.step, **rewards, "success": row.success, "malformed": row.malformed}
            | {"evaluations": [{name: getattr(evaluation, name) for name in _FIGURES} for evaluation in evaluations]}
        )

    async def _forms(
        self, run_id: str, iteration: int, makes: Sequence[Callable[[], _Form]]
    ) -> AsyncIterator[Sequence[bytes]]:
        forms = await asyncio.to_thread(lambda: [make() for make in makes])

        def write(rows: Sequence[Trajectory]) -> list[bytes]:
            return [form.write(rows) for form in forms]

        of_iteration = Trajectory.run_id == run_id, Trajectory.iteration == iteration
        async for rows in trajectories(self._database, _ROWS_AT_ONCE, *of_iteration):
            yield await asyncio.to_thread(write, rows)
        yield await asyncio.to_thread(lambda: [form.close() for form in forms])


async def trajectories(
    database: Database, limit: int, *conditions: ColumnElement[bool]
) -> AsyncIterator[Sequence[Trajectory]]:
    """Yield pages of at most `limit` rows in the order of saving. No connection is held while they are used, because a
    reader can be slow."""
    after = -1
    while True:
        page = select(Trajectory).where(*conditions, Trajectory.seq > after).order_by(Trajectory.seq).limit(limit)
        async with database() as tx:
            rows = (await tx.execute(page)).scalars().all()
        if not rows:
            return
        after = rows[-1].seq
        yield rows


def _tables() -> Sequence[str]:
    """Return the documents that are Parquet tables; none without the package that writes them."""
    return () if find_spec("pyarrow") is None else (_TABLE,)


def _document(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


async def _alone(document: Callable[[], Awaitable[bytes]]) -> AsyncIterator[Sequence[bytes]]:
    yield [await document()]


class _JsonLines:
    """Writes one line for each trajectory."""

    def write(self, rows: Sequence[Trajectory]) -> bytes:
        lines = (TrajectoryOut.of(row) for row in rows)
        return "".join(f"{line.model_dump_json()}\n" for line in lines).encode()

    def close(self) -> bytes:
        return b""


_FORMS: Mapping[str, Callable[[], _Form]] = {_LINES: _JsonLines, _TABLE: TrajectoryTable}
