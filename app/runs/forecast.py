"""What a run will come to, by its own iterations and its ledger, and what the rules of `stop_when` are decided by."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import case, exists, func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Iteration, LedgerEntry, Run
from learnloop_service.app.domain.run_state import TERMINAL
from learnloop_service.app.runs.cost import cost_of
from learnloop_service.app.schemas.runs import ForecastFigure, ForecastFigures, RunForecastOut
from learnloop_service.environment.wording import counted
from learnloop_service.training.phases import Phase
from learnloop_service.training.statistics.learning_curve import CurvePoint, FittedCurve, extrapolated, interval
from learnloop_service.training.stopping import Stopping
from learnloop_service.training.types import RunConfig

_FEWEST = 3
"""Iterations with rollouts from which costs are extrapolated."""
_REASONS = {
    "target": "its held-out success was shown to have reached the target",
    "plateau": "its held-out success was shown to rise no longer",
    "no_gain": "another point of held-out success was expected to cost more than it is worth",
}
_SHOWN: Mapping[ForecastFigure, Callable[[float], str]] = {
    "success": "{:.0%}".format,
    "minutes": "{:,.1f} minutes".format,
    "tokens": "{:,.0f} tokens".format,
    "usd": "${:,.2f}".format,
}
Used = Mapping[tuple[int, bool], Mapping[str, float | None]]
"""Minutes, tokens and dollars of an iteration's evaluation, or of the rest of it."""


async def stopping_of(database: Database, run: Run) -> Stopping:
    """Return the rules of a run with its saved iterations. Their costs leave out work that was lost and repeated, so
    that kills change no decision by tokens."""
    row = Iteration
    evaluated = exists().where(Evaluation.run_id == run.id, Evaluation.iteration == row.iteration)
    held_out = case((evaluated, row.facts[("held_out", "sampled")]))  # other facts need not be decompressed
    calls = select(func.sum(LedgerEntry.usd)).where(LedgerEntry.run_id == run.id).correlate(row)
    calls = calls.where(LedgerEntry.iteration == row.iteration)
    columns = (row.iteration, row.success, row.reward_count, held_out, row.timing, calls.scalar_subquery())
    async with database() as tx:
        rows: Any = await tx.execute(select(*columns).where(row.run_id == run.id))
    points = []
    for iteration, success, count, held_out_rates, of, usd in rows:
        cost = None
        if of.keys() >= {"total_s", "prompt_tokens", "completion_tokens"}:  # those of early versions lack some
            cost = _costs(run, of["total_s"], of["prompt_tokens"] + of["completion_tokens"], usd)
        points.append(CurvePoint(iteration, success, count, held_out_rates, cost))
    return Stopping(run.stored_request.config, points)


async def used_by(database: Database, run: Run) -> Used:
    """Return what a run's saved iterations used, by the ledger."""
    row, evaluates = LedgerEntry, LedgerEntry.phase == Phase.EVALUATE
    sums = func.sum(row.seconds), func.sum(row.prompt_tokens + row.completion_tokens), func.sum(row.usd)
    query = select(row.iteration, evaluates, *sums).where(row.run_id == run.id, row.iteration < run.next_iteration)
    async with database() as tx:
        rows: Any = await tx.execute(query.group_by(row.iteration, evaluates))
    return {(iteration, is_evaluation): _costs(run, *of) for iteration, is_evaluation, *of in rows}


def _costs(run: Run, seconds: float, tokens: float, usd: float | None) -> Mapping[str, float | None]:
    total = cost_of([usd], seconds, run.machine_price_per_hour).total_usd
    return {"minutes": seconds / 60, "tokens": float(tokens), "usd": total}


def forecast(run: Run, stopping: Stopping, used: Used) -> RunForecastOut | None:
    """Return the forecast of a run after its newest saved iteration, of an ended one only if its own rule ended it.
    Takes about a tenth of a second."""
    config, curve, now = stopping.config, stopping.fitted(), run.next_iteration - 1
    total, is_early = config.all_iterations, now - config.supervised_iterations < _FEWEST
    end, twice = (
        {} if is_early else _figures(config, curve, used, now, until) for until in (total, total + config.iterations)
    )
    if run.status in TERMINAL:
        if (reason := stopping.reason) is None:
            return None
        why = f"It ended after {now} of {counted(total, 'iteration')}, because {_REASONS[reason]}."
        rest = f" The others were expected to come to {_in_words(end)}." if end else ""
        return RunForecastOut(end=end, twice=twice, text=[why + rest])
    silent = "Forecasts begin after three iterations, and those of success after two evaluations."
    if curve is not None and "success" not in end:
        _, low, high = map(_SHOWN["success"], interval(curve.success(total)))
        silent = f"Success at the end is still uncertain: {low} to {high}."
    text = [f"At the end: {_in_words(end)}.", f"With twice the iterations: {_in_words(twice)}."] if end else []
    return RunForecastOut(end=end, twice=twice, text=text if "success" in end else [silent, *text])


def _figures(config: RunConfig, curve: FittedCurve | None, used: Used, now: int, until: int) -> ForecastFigures:
    figures: ForecastFigures = {"success": interval(curve.evaluation(until))} if curve and curve.is_sure(until) else {}
    for unit in _SHOWN:
        if unit != "success" and (spent := spent_until(config, used, unit, now, until)):
            figures[unit] = spent
    return figures


def spent_until(config: RunConfig, used: Used, unit: str, now: int, until: int) -> tuple[float, float, float] | None:
    """Return what the iterations after `now` use. The first one with rollouts warms up, and the baseline has test
    scenarios as well, so they count only without others."""
    first, held_out = config.supervised_iterations, config.evaluation
    costs: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for (iteration, is_evaluation), of in used.items():
        if (cost := of[unit]) and of["tokens"] and iteration >= first + (not is_evaluation):
            costs[is_evaluation][iteration - first] = cost
    rest, evaluations = costs[False], costs[True]
    if len(rest) > _FEWEST:
        rest.pop(1, None)
    if (base := evaluations.pop(0, None)) and not evaluations:
        evaluations[1] = base * held_out.scenarios / (held_out.scenarios + (0 if first else held_out.test_scenarios))
    ahead = range(now + 1 - first, until + 1 - first)
    if len(rest) < _FEWEST - 1 or not ahead:
        return None
    sums = extrapolated(rest, [(time, 1.0) for time in ahead])
    if evaluations and held_out.scenarios:
        due = [(time, 1.0) for time in ahead if time % held_out.every == 0 or time == ahead[-1]]
        sums += extrapolated(evaluations, [*due, (ahead[-1], held_out.test_scenarios / held_out.scenarios)])
    return interval(sums)


def _in_words(figures: ForecastFigures) -> str:
    parts = {name: [_SHOWN[name](value) for value in of] for name, of in figures.items()}
    return ", ".join(f"{name} {of[0]} [{of[1]} to {of[2]}]" for name, of in parts.items())
