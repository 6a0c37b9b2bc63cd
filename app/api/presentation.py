"""Converts rows to response bodies."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from learnloop_service.app.api.links import results_path, run_links
from learnloop_service.app.db.tables import EvaluationJob, Reflection, Run
from learnloop_service.app.domain.run_state import TERMINAL, RunStatus
from learnloop_service.app.domain.settings_by_path import by_path
from learnloop_service.app.domain.supervised import supervised_figures
from learnloop_service.app.errors import NotFound
from learnloop_service.app.operations.start.evaluation import StartedEvaluation
from learnloop_service.app.operations.start.run import Started
from learnloop_service.app.results.showcase import showcase_email, shows_email
from learnloop_service.app.runs.cost import cost_of
from learnloop_service.app.runs.diagnoses import causes_of
from learnloop_service.app.runs.ledger import Totals
from learnloop_service.app.runs.lost_rollouts import lost_warnings
from learnloop_service.app.runs.no_signal import warnings_of
from learnloop_service.app.runs.queries import RunFigures, ShownIteration
from learnloop_service.app.runs.queue_position import QueuePosition
from learnloop_service.app.runs.run_list import Listed
from learnloop_service.app.schemas.evaluations import EvaluationAccepted, EvaluationBrief
from learnloop_service.app.schemas.results import LedgerTotals, NodeScores
from learnloop_service.app.schemas.runs import (
    DefaultOut,
    ExpectedWork,
    IterationOut,
    LearnLoopAccepted,
    LearnLoopPlan,
    Rewards,
    RunBrief,
    RunForecastOut,
    RunListed,
    RunOut,
    RunWebhookCreated,
    SupervisedFigures,
)
from learnloop_service.app.statistics.verdict import RunVerdict, verdict
from learnloop_service.environment.wording import counted
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.statistics.shares import wilson

_LONGEST_SETTING = 100
"""Characters of a setting in the list of runs."""


def accepted(run_id: str, started: Started) -> LearnLoopAccepted:
    """Return the response to a request that created a run and its webhook endpoints."""
    return LearnLoopAccepted(
        run_id=run_id,
        status=RunStatus.QUEUED,
        results_path=results_path(run_id),
        links=run_links(run_id),
        webhooks=[
            RunWebhookCreated(id=endpoint.row.id, url=endpoint.row.url, secret=endpoint.secret)
            for endpoint in started.endpoints
        ],
        **dict(planned(started)),
    )


def planned(started: Started) -> LearnLoopPlan:
    """Return what a run would be and do."""
    return LearnLoopPlan(
        warnings=list(started.warnings),
        defaults={path: DefaultOut(**asdict(default)) for path, default in started.defaults.items()},
        expected=ExpectedWork.model_validate(asdict(started.expected)),
    )


def run_brief(run: Run) -> RunBrief:
    """Return a run as an item of a list."""
    return RunBrief.model_validate(_brief(run))


def run_listed(
    listed: Listed, verdict: RunVerdict, curve: list[float] | None, *, with_settings: bool = False
) -> RunListed:
    """Return a run as an item of the list of runs. `curve` is None unless it was requested."""
    run = listed.run
    more = {
        "settings_hash": run.settings_hash,
        "seed": run.request.get("seed"),
        "learning_rate": run.request.get("learning_rate"),
        "same_settings": listed.same,
        "verdict": asdict(verdict),
        "judge_usd": run.judge_cost_usd,
        "cost_usd": listed.cost_usd,
        "settings": _settings(run) if with_settings else None,
        "curve": curve,
    }
    return RunListed.model_validate(_brief(run) | more)


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that fit into cells of a table."""
    settings = by_path(run.request).items()
    return {path: value for path, value in settings if isinstance(value, int | float) or _is_short(value)}


def _is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_SETTING


def run_whole(figures: RunFigures, queue: QueuePosition | None, forecast: RunForecastOut | None = None) -> RunOut:
    """Return a run with its figures, its position in the queue, its cost and what it will come to."""
    run = figures.run
    judged = verdict(figures.evaluations, run.best_step, causes_of(run), figures.losses)
    if forecast is not None and run.status in TERMINAL:
        details, text = (" ".join(filter(None, (said, *forecast.text))) for said in (judged.details, judged.text))
        judged = replace(judged, details=details, text=text)
    cost = ledger_totals(figures.used, run.machine_price_per_hour)
    return RunOut.model_validate(
        RunOut.shown_of(run)
        | _brief(run)
        | {
            "warnings": [*run.warnings, *warnings_of(figures.iterations), *lost_warnings(figures.iterations)],
            "best_checkpoint": _best_checkpoint(figures),
            "verdict": asdict(judged),
            "forecast": forecast,
            "queue": None if queue is None else asdict(queue),
            "parent": _parent(run),
            "attempts": run.claims,
            "iterations": figures.iterations,
            "evaluations": figures.evaluations,
            "webhooks": figures.deliveries,
            "cost": cost.model_dump()
            | {
                "machine_price_per_hour": run.machine_price_per_hour,
                "total_usd": cost_of([cost.usd], cost.seconds, run.machine_price_per_hour).total_usd,
                "judge_usd": run.judge_cost_usd,
                "judge_prompt_tokens": run.judge_prompt_tokens,
                "judge_completion_tokens": run.judge_completion_tokens,
            },
            "last_event": run.event_seq,
            "results_path": results_path(run.id),
        }
    )


def ledger_totals(sums: Totals, price_per_hour: float | None) -> LedgerTotals:
    """Return the sums of a ledger, with the price of its time."""
    return LedgerTotals(
        seconds=sums.seconds,
        prompt_tokens=sums.usage.prompt_tokens,
        completion_tokens=sums.usage.completion_tokens,
        usd=sums.usage.usd,
        machine_usd=cost_of([sums.usage.usd], sums.seconds, price_per_hour).machine_usd,
        wasted_tokens=sums.wasted.tokens,
        wasted_usd=sums.wasted.usd,
    )


def iteration(stored: ShownIteration) -> IterationOut:
    """Return one iteration with all its figures."""
    row, showcase = stored
    email = None if showcase is None or not shows_email(showcase.outcome) else showcase_email(showcase)
    shown = IterationOut.shown_of(row) | _curve_point(vars(row))
    return IterationOut(**shown, supervised=_supervised(row.train_metrics), email=email)


def node_scores(row: Reflection) -> NodeScores:
    """Return an iteration's node scores. Raises NotFound if the environment does not score nodes."""
    scores = row.state.get("node_scores")
    if scores is None:
        raise NotFound(f"The environment of run {row.run_id} does not score nodes.")
    ranked = sorted(scores, key=lambda id: (-scores[id], id))
    return NodeScores(run_id=row.run_id, iteration=row.iteration, node_scores=scores, ranked=ranked)


def evaluation_brief(job: EvaluationJob) -> EvaluationBrief:
    """Return an evaluation as an item of a list."""
    return EvaluationBrief.model_validate(evaluation_figures(job))


def evaluation_accepted(started: StartedEvaluation) -> EvaluationAccepted:
    """Return the response to a request that starts an evaluation."""
    return EvaluationAccepted.model_validate(evaluation_figures(started.job) | {"warnings": started.warnings})


def evaluation_figures(job: EvaluationJob) -> dict[str, Any]:
    """Return the fields that every response about an evaluation has."""
    return {
        "evaluation_id": job.id,
        "models": [contestant["label"] for contestant in job.request["models"]],
        **EvaluationBrief.shown_of(job),
    }


def _best_checkpoint(figures: RunFigures) -> dict[str, Any] | None:
    """Return the run's best checkpoint with the interval of its success."""
    run = figures.run
    if run.best_step is None:
        return None
    best = ("validation", "sampled", run.best_step)
    rows = [
        evaluation
        for evaluation in figures.evaluations
        if (evaluation["split"], evaluation["mode"], evaluation["step"]) == best
    ]
    interval = wilson(rows[0]["success"], rows[0]["scenarios"]) if rows else None
    return {"step": run.best_step, "success": run.best_success, "interval": interval}


def _brief(run: Run) -> dict[str, Any]:
    """Return plain values, because pydantic validates them in a single call, much faster than one model at a time."""
    return RunBrief.shown_of(run) | {
        "run_id": run.id,
        "on_engine": is_on_engine(run.backend),
        "model": {"project": run.model_project, "name": run.model_name, "base_model": run.base_model},
        "progress": {
            "iterations_done": max(0, run.next_iteration - 1),
            "iterations_total": run.iterations_total,
            "iteration": run.phase_iteration,
            "phase": run.phase,
            "done": run.phase_done,
            "total": run.phase_total,
            "failures": run.rollout_failures,
        },
        "best_checkpoint": None if run.best_step is None else {"step": run.best_step, "success": run.best_success},
        "tokens": {"prompt": run.prompt_tokens, "completion": run.completion_tokens},
        "ended_early": _ended_early(run),
        "diagnosis": next(iter(causes_of(run)), None),
        "links": run_links(run.id),
    }


def _ended_early(run: Run) -> str | None:
    finished = run.next_iteration - 1
    rules = [name for name in ("stop_when", "end_when_learned") if run.request.get(name)]
    if run.status != RunStatus.COMPLETED or finished >= run.iterations_total or not rules:
        return None
    why = "by its stop_when" if rules[0] == "stop_when" else "because little was left to learn"
    return f"It ended after {finished} of {counted(run.iterations_total, 'iteration')}, {why}."


def _parent(run: Run) -> dict[str, Any] | None:
    if run.parent_run_id is None or run.parent_step is None:
        return None
    return {"run_id": run.parent_run_id, "step": run.parent_step}


def _supervised(metrics: Mapping[str, Any]) -> SupervisedFigures | None:
    figures = supervised_figures(metrics)
    return None if figures is None else SupervisedFigures(**figures)


def _curve_point(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("mean", "median", "min", "max", "count")
    rewards = Rewards(**{name: row[f"reward_{name}"] for name in names})
    columns = ("iteration", "step", "success", "malformed", "no_signal", "lost_rollouts")
    return {name: row[name] for name in columns} | {"rewards": rewards}
