"""Reads what the verdicts on runs are computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, func, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from learnloop_service.app.db.tables import Evaluation, Iteration, Run
from learnloop_service.app.domain.supervised import MARK
from learnloop_service.app.statistics.verdict import RunVerdict, verdict

EVALUATION = (
    "iteration",
    "split",
    "mode",
    "step",
    "scenarios",
    "success",
    "mean_reward",
    "malformed",
    "turns",
    "difference",
)
"""Columns of an evaluation that the API shows."""


def _losses() -> ColumnElement[Any]:
    """Select the first and the latest loss of a run whose iterations are done and were all supervised, or null."""
    first, latest = aliased(Iteration), aliased(Iteration)
    trained, now = first.train_metrics, latest.train_metrics
    before, held_out = trained["held_out_loss_before"].as_float(), now["held_out_loss"].as_float()
    figures = func.json_build_object(
        literal_column("'first'"),
        func.coalesce(before, case((first.iteration < latest.iteration, trained["loss"].as_float()))),
        literal_column("'latest'"),
        func.coalesce(held_out, now["loss"].as_float()),
        literal_column("'held_out'"),
        before.is_not(None),
    )
    return (
        select(figures)
        .where(first.run_id == Run.id, first.iteration == 1, trained.has_key(MARK))
        .where(latest.run_id == Run.id, latest.iteration == Run.iterations_total, now.has_key(MARK))
        .correlate(Run)
        .scalar_subquery()
    )


LOSSES = _losses()


class Judged(NamedTuple):
    """What a run's verdict depends on besides its evaluations."""

    best_step: int | None
    causes: Sequence[str]
    """Names of its current diagnoses."""


async def verdicts(tx: AsyncSession, runs: Mapping[str, Judged]) -> dict[str, RunVerdict]:
    """Return the verdicts on runs, by id."""
    sampled = and_(Evaluation.run_id.in_(runs), Evaluation.mode == "sampled")
    ends = (
        select(Evaluation.run_id, Evaluation.split, func.max(Evaluation.iteration).label("latest"))
        .where(sampled)
        .group_by(Evaluation.run_id, Evaluation.split)
        .subquery()
    )
    at_ends = or_(
        Evaluation.iteration.in_((0, ends.c.latest)),
        Evaluation.step == Run.best_step,
    )
    query = (
        select(Evaluation.run_id, *(getattr(Evaluation, name) for name in EVALUATION))
        .join(ends, and_(ends.c.run_id == Evaluation.run_id, ends.c.split == Evaluation.split))
        .join(Run, Run.id == Evaluation.run_id)
        .where(sampled, at_ends)
    )
    evaluations: dict[str, list[dict[str, Any]]] = {run_id: [] for run_id in runs}
    for run_id, *values in await tx.execute(query):
        evaluations[run_id].append(dict(zip(EVALUATION, values, strict=True)))
    losses = {id: of for id, of in await tx.execute(select(Run.id, LOSSES).where(Run.id.in_(runs)))}  # noqa: C416
    return {run_id: verdict(rows, *runs[run_id], losses.get(run_id)) for run_id, rows in evaluations.items()}


async def verdict_on(tx: AsyncSession, run_id: str) -> dict[str, Any]:
    """Return the part of an event's data that says whether the run learned."""
    judged = Judged(*(await tx.execute(select(Run.best_step, Run.causes).where(Run.id == run_id))).one())
    return {"verdict": asdict((await verdicts(tx, {run_id: judged}))[run_id])}
