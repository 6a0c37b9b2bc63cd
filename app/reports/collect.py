"""Collects a run's report from its rows, as one JSON document. Everything that a report shows is in it."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from sqlalchemy import func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import (
    Checkpoint,
    Evaluation,
    EvaluationJob,
    Iteration,
    LedgerEntry,
    Run,
    Trajectory,
)
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.processes.cores import usable_cores
from learnloop_service.app.reports.rollouts import (
    MAX_DIGESTS,
    Listing,
    RolloutBatch,
    Row,
    digest,
    evaluated,
    listed_row,
    listing,
    rollout_hash,
    thinned,
)
from learnloop_service.app.reports.shown_examples import shown_examples
from learnloop_service.app.results.documents import trajectories
from learnloop_service.app.runs.diagnoses import causes_of, diagnoses_of
from learnloop_service.app.runs.verdicts import EVALUATION, LOSSES
from learnloop_service.app.settings import Settings
from learnloop_service.app.statistics.verdict import headline, verdict
from learnloop_service.app.tracing.redaction import Redactor, secrets_of
from learnloop_service.environment.json_type import Json
from learnloop_service.training.source_code import source_hash

FORMAT = "learnloop-report/1"
_MAX_ITERATIONS = 500
_MAX_EVALUATED = 100
"""Maximum number of iterations whose evaluations are shown."""
_MAX_REJUDGINGS = 5
"""Newest rejudgings that are mentioned."""
_ROWS_AT_ONCE = 200
_FIGURES = ("iteration", "step", "success", "malformed", "failed_rollouts")
_PARTS_OF_TEXT = ("sentence", "details")
"""Members that repeat a verdict's text in parts. A report leaves them out, as reports of earlier versions did."""
_REWARDS = ("mean", "median", "min", "max", "count")


def renderer() -> str:
    """Return a hash of the code that renders reports. Equal documents give equal files only if it is equal."""
    return source_hash("learnloop_service.app.reports", "learnloop_service.app.plots")[:16]


async def collect(database: Database, settings: Settings, run: Run) -> Json:
    """Return the report on the iterations that are saved so far. Reads all of the run's trajectories."""
    iterations, evaluations = await _figures(database, run.id)
    async with database() as tx:
        losses = (await tx.execute(select(LOSSES).where(Run.id == run.id))).scalar_one()
    judged = verdict(evaluations, run.best_step, causes_of(run), losses)
    sizes = await _sizes(database, run.id)
    listed = listing(sizes, _first_choice(sizes, evaluations, run.best_step))
    collected = await _collected(database, run.id, listed)
    redactor = Redactor(secrets_of(settings))
    document: dict[str, Json] = {
        "format": FORMAT,
        "written": _written(settings, run),
        "run": _run(run),
        "settings": run.request,
        "verdict": {name: value for name, value in asdict(judged).items() if name not in _PARTS_OF_TEXT},
        "causes": [
            _cause(diagnosis) for diagnosis in await diagnoses_of(database, run.id) if diagnosis.state == "active"
        ],
        "iterations": _thinned_iterations(iterations),
        "evaluations": _thinned_evaluations(evaluations, run.best_step),
        "scenarios": collected.scenarios,
        "rollouts": collected.listed(sizes, listed),
        "digests": collected.digests(),
        "cost": await _cost(database, run),
        "checkpoints": await _checkpoints(database, run.id),
        "rejudgings": await _rejudgings(database, run.id),
    }
    document["examples"] = await shown_examples(database, document)
    # What a report shows is passed on to others. Ids, hashes and figures hold no secrets.
    for name in ("settings", "examples", "causes", "run"):
        document[name] = redactor.value(document[name])
    return document


def _written(settings: Settings, run: Run) -> Json:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "learnloop": version("learnloop"),
        "renderer": renderer(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": usable_cores(),
        "engine_device": settings.engine_device,
        "machine_price_per_hour": run.machine_price_per_hour,
    }


def _run(run: Run) -> Json:
    times = {name: getattr(run, name) for name in ("created_at", "started_at", "finished_at")}
    return {
        "run_id": run.id,
        "name": run.name or f"{run.model_project}/{run.model_name}",
        "status": run.status,
        "environment": run.environment,
        "judge": run.judge,
        "backend": run.backend,
        "model": f"{run.model_project}/{run.model_name}",
        "base_model": run.base_model,
        "seed": run.stored_request.config.seed,
        "iterations_done": max(0, run.next_iteration - 1),
        "iterations_total": run.iterations_total,
        "best_step": run.best_step,
        "rollouts": run.rollouts,
        "reproducible": run.reproducible,
        "reproducible_reason": run.reproducible_reason,
        "parent": None if run.parent_run_id is None else f"{run.parent_run_id} at step {run.parent_step}",
        "error": run.error,
        "pruned": sorted(run.pruned),
        **{name: None if time is None else time.isoformat(timespec="seconds") for name, time in times.items()},
    }


def _cause(row: Any) -> Json:
    remedy = row.remedy["text"]
    return {"cause": row.cause, "severity": row.severity, "summary": row.summary, "remedy": remedy}


async def _figures(database: Database, run_id: str) -> tuple[list[Json], list[Json]]:
    """Return all iterations and evaluations in order."""
    async with database() as tx:
        iterations = await tx.execute(select(Iteration).where(Iteration.run_id == run_id).order_by(Iteration.iteration))
        order = (getattr(Evaluation, name) for name in ("iteration", "split", "mode", "step"))
        evaluations = await tx.execute(select(Evaluation).where(Evaluation.run_id == run_id).order_by(*order))
        return (
            [
                {name: getattr(row, name) for name in _FIGURES}
                | {"rewards": {name: getattr(row, f"reward_{name}") for name in _REWARDS}}
                for row in iterations.scalars()
            ],
            [{name: getattr(row, name) for name in EVALUATION} for row in evaluations.scalars()],
        )


async def _sizes(database: Database, run_id: str) -> dict[RolloutBatch, int]:
    columns = [getattr(Trajectory, name) for name in (*RolloutBatch._fields, "replaces")]
    query = (
        select(*columns, func.count().label("rollouts"))
        .where(Trajectory.run_id == run_id, Trajectory.iteration.is_not(None))
        .group_by(*columns)
    )
    sizes: Counter[RolloutBatch] = Counter()
    async with database() as tx:
        for row in await tx.execute(query):
            sizes[_batch_of(row)] += row.rollouts
    return dict(sizes)


def _batch_of(row: Any) -> RolloutBatch:
    """Return the batch of a trajectory. Training batches are not distinguished by the policy that sampled them, and
    replacements are a batch apart, because figures leave them out."""
    step = row.step if row.kind == "evaluation" else None
    return RolloutBatch(row.iteration, row.kind if row.replaces is None else "replacement", row.split, row.mode, step)


def _first_choice(
    sizes: Mapping[RolloutBatch, int], evaluations: Sequence[Json], best_step: int | None
) -> list[RolloutBatch]:
    """Return the batches that the verdict, the examples and the end points of curves follow from."""
    heads = headline(evaluations)
    ends = [evaluated(row) for row in (*heads[:1], *heads[-1:])]
    marked = {0, *(row["iteration"] for row in heads[-1:]), max((batch.iteration for batch in sizes), default=0)}
    others = [evaluated(row) for row in evaluations if row["iteration"] in marked or row["step"] == best_step]
    return [*ends, *others]


class _Collected:
    """The listed rollouts by batch, and the hashes of all rollouts by iteration."""

    def __init__(self) -> None:
        self.scenarios: list[str] = []
        self.batches: dict[RolloutBatch, list[Row]] = {}
        self._numbers: dict[str, int] = {}
        self._hashes: dict[int, list[str]] = {}

    def add(self, row: Any, listed: Listing) -> None:
        hash = rollout_hash(row)
        self._hashes.setdefault(row.iteration, []).append(hash)
        if (batch := _batch_of(row)) in listed.batches:
            if row.scenario_id not in self._numbers:
                self._numbers[row.scenario_id] = len(self.scenarios)
                self.scenarios.append(row.scenario_id)
            self.batches.setdefault(batch, []).append(listed_row(row, self._numbers[row.scenario_id], hash))

    def listed(self, sizes: Mapping[RolloutBatch, int], listing: Listing) -> Json:
        return {
            "total": sum(sizes.values()),
            "listed": sum(map(len, self.batches.values())),
            "every": listing.every,
            "columns": list(Row._fields),
            "batches": [batch._asdict() | {"rows": list(map(list, rows))} for batch, rows in self.batches.items()],
        }

    def digests(self) -> Json:
        """Return one digest for each iteration, or for several together if there are very many."""
        together = thinned(sorted(self._hashes), MAX_DIGESTS)
        blocks: dict[int, list[int]] = {}
        for iteration in sorted(self._hashes):
            blocks.setdefault(iteration // together, []).append(iteration)
        return [
            {
                "from": block[0],
                "to": block[-1],
                "rollouts": sum(len(self._hashes[member]) for member in block),
                "sha256": digest(hash for member in block for hash in self._hashes[member]),
            }
            for block in blocks.values()
        ]


async def _collected(database: Database, run_id: str, listed: Listing) -> _Collected:
    collected = _Collected()
    of_run = Trajectory.run_id == run_id, Trajectory.iteration.is_not(None)
    async for rows in trajectories(database, _ROWS_AT_ONCE, *of_run):
        for row in rows:
            collected.add(row, listed)
    return collected


def _thinned_iterations(rows: Sequence[Json]) -> Json:
    numbers = [row["iteration"] for row in rows]
    every = thinned(numbers, _MAX_ITERATIONS)
    ends = {1, *numbers[-1:]}
    items = [row for row in rows if row["iteration"] % every == 0 or row["iteration"] in ends]
    return {"every": every, "items": items}


def _thinned_evaluations(rows: Sequence[Json], best_step: int | None) -> Json:
    numbers = sorted({row["iteration"] for row in rows})
    positions = {number: position for position, number in enumerate(numbers)}
    every = thinned(range(len(numbers)), _MAX_EVALUATED)
    items = [
        row
        for row in rows
        if positions[row["iteration"]] % every == 0 or row["iteration"] == numbers[-1] or row["step"] == best_step
    ]
    return {"every": every, "items": items}


async def _cost(database: Database, run: Run) -> Json:
    sums = {name: getattr(LedgerEntry, name) for name in ("seconds", "prompt_tokens", "completion_tokens", "usd")}
    query = (
        select(LedgerEntry.phase, *(func.sum(column).label(name) for name, column in sums.items()))
        .where(LedgerEntry.run_id == run.id)
        .group_by(LedgerEntry.phase)
        .order_by(LedgerEntry.phase)
    )
    async with database() as tx:
        rows = (await tx.execute(query)).mappings().all()
    phases = {row["phase"]: {name: _number(row[name]) for name in sums} for row in rows}
    wall = (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else None
    return {"phases": phases, "wall_s": wall, "judge_usd": run.judge_cost_usd}


def _number(value: Any) -> float | int | None:
    """Return a sum as a plain number, because Postgres gives the sum of whole numbers as a Decimal."""
    return value if value is None or isinstance(value, float) else int(value)


async def _checkpoints(database: Database, run_id: str) -> list[Json]:
    query = select(Checkpoint).where(Checkpoint.run_id == run_id).order_by(Checkpoint.step)
    async with database() as tx:
        rows = (await tx.execute(query)).scalars().all()
    names = ("step", "iteration", "model", "success", "is_best")
    every = thinned(range(len(rows)), _MAX_EVALUATED)
    return [
        {name: getattr(row, name) for name in names}
        for position, row in enumerate(rows)
        if position % every == 0 or row.is_best or row is rows[-1]
    ]


async def _rejudgings(database: Database, run_id: str) -> list[Json]:
    query = (
        select(EvaluationJob)
        .where(EvaluationJob.run_id == run_id, EvaluationJob.status == EvaluationStatus.COMPLETED)
        .order_by(EvaluationJob.id.desc())
        .limit(_MAX_REJUDGINGS)
    )
    async with database() as tx:
        rows = (await tx.execute(query)).scalars().all()
    return [
        {"evaluation_id": row.id, "judge": row.request["judge"]["name"], "text": row.report["rejudge"]["text"]}
        for row in rows
        if row.report is not None
    ]
