"""Rows as the API shows them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from app import schemas
from app.api.links import run_links
from app.models import Iteration, Run
from app.runs.queries import RunFigures
from app.runs.state import RunStatus

Source = TypeVar("Source")
Shown = TypeVar("Shown")


def page(
    found: Sequence[Source], limit: int, show: Callable[[Source], Shown], cursor: Callable[[Source], str | int]
) -> schemas.Page[Shown]:
    """A page of at most `limit`; `found` has one more if there is a next page."""
    shown = found[:limit]
    next_cursor = str(cursor(shown[-1])) if len(found) > limit else None
    return schemas.Page(items=[show(item) for item in shown], next_cursor=next_cursor)


def run_brief(run: Run) -> schemas.RunBrief:
    """A run in a list."""
    return schemas.RunBrief(**_brief(run))


def run_whole(figures: RunFigures) -> schemas.RunOut:
    """A run with its figures."""
    run = figures.run
    return schemas.RunOut(
        **_brief(run),
        cancel_requested=run.cancel_requested,
        request=run.request,
        iterations=[schemas.IterationFigures(**_curve_point(row)) for row in figures.iterations],
        evaluations=[schemas.EvaluationOut(**row) for row in figures.evaluations],
        summary=run.summary,
        webhooks=figures.deliveries,
    )


def iteration(row: Iteration) -> schemas.IterationOut:
    """One iteration in full."""
    return schemas.IterationOut(
        **_curve_point(vars(row)),
        best_step=row.best_step,
        failed_rollouts=row.failed_rollouts,
        skipped_groups=row.skipped_groups,
        train_metrics=row.train_metrics,
        timing=row.timing,
        finished_at=row.finished_at,
    )


def _brief(run: Run) -> dict[str, Any]:
    best = None
    if run.best_step is not None:
        best = schemas.BestCheckpoint(step=run.best_step, success=run.best_success)
    return {
        "run_id": run.id,
        "status": RunStatus(run.status),
        "environment": run.environment,
        "judge": run.judge,
        "backend": run.backend,
        "model": schemas.ModelOut(project=run.model_project, name=run.model_name, base_model=run.base_model),
        "progress": schemas.Progress(
            iterations_done=max(0, run.next_iteration - 1),
            iterations_total=run.iterations_total,
            iteration=run.phase_iteration,
            phase=run.phase,
            done=run.phase_done,
            total=run.phase_total,
        ),
        "best_checkpoint": best,
        "rollouts": run.rollouts,
        "tokens": schemas.Tokens(prompt=run.prompt_tokens, completion=run.completion_tokens),
        "error": run.error,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "links": run_links(run.id),
    }


def _curve_point(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("mean", "median", "min", "max", "count")
    rewards = schemas.Rewards(**{name: row[f"reward_{name}"] for name in names})
    return {name: row[name] for name in ("iteration", "step", "success", "malformed")} | {"rewards": rewards}
