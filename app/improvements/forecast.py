"""What trainings will take, before they are paid for: a range, and what it is from; and what the budget has left.

Work is counted in rollouts and demonstrations. What one of them takes is known from earlier runs on the same base, and
else from the pilot, whose rollouts are those of the same agent on the same machine.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, case, func, literal, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import LedgerEntry, Run
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.improvements.amounts import clock, percent
from learnloop_service.app.improvements.jobs import learn_loop
from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore
from learnloop_service.app.operations.start.run_plan import plan_of, request_with_defaults
from learnloop_service.app.reports.format import dollars
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.cost import stored_price
from learnloop_service.app.runs.expected_work import expected_rollouts
from learnloop_service.app.schemas.improvements import PriceOut, RungForecastOut
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.phases import Phase

EARLIER, _GUESSED = 3**0.5, 2.0
"""Factors by which a price can be below and above what is expected: by earlier runs, when the machine had other work,
and without any."""
_TRAINED_TO_EVALUATED = 1.5
"""How much longer a rollout takes that is trained on, without earlier runs. With the tiny base on two cores it was 1.1
to 1.4 times, although training itself takes as long as the rollouts: runs make more of them at the same time."""
_IMITATED_TO_EVALUATED = 1.0
"""How much longer than a rollout it takes to train on a demonstration once, without earlier runs."""
_RUNS = 10
"""Number of the newest runs that are looked at."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """What a completed run took, in seconds; None for work that it did not do."""

    environment: str
    success: float | None
    """Success of its best checkpoint on validation tasks."""
    imitates_only: bool
    evaluated: float | None = None
    """Seconds per token."""
    trained: float | None = None
    """Seconds per token."""
    imitated: float | None = None
    """Seconds per demonstration and epoch."""


def training(
    rung: Rung,
    request: Mapping[str, Json],
    pilot: Mapping[str, float],
    runs: Sequence[EarlierRun],
    price_per_hour: float | None = None,
) -> RungForecastOut:
    """Return what a run with this whole request takes: a range around what is expected. `pilot` has the mean `seconds`
    and `tokens` of a rollout, `runs` are earlier ones with the same base, and `price_per_hour` is that of the machine.
    """
    environment = request["environment"]["name"]
    alike = [run for run in runs if (run.imitated if rung is Rung.IMITATION else run.trained) is not None]
    source, spread = f"by {counted(len(alike), 'earlier run')} on this base", EARLIER
    if not alike:
        alike = [EarlierRun(environment, None, imitates_only=False)]
        source, spread = "by the pilot's rollouts, without an earlier run on this base", _GUESSED
    seconds = median(_seconds(request, pilot, run) for run in alike)
    usd = None if price_per_hour is None else seconds * price_per_hour / 3600
    return RungForecastOut(
        rung=rung,
        minutes=(seconds / 60 / spread, seconds / 60 * spread),
        usd=None if usd is None else (usd / spread, usd * spread),
        source=source,
        gain=known_gain(rung, runs, environment),
    )


def known_gain(rung: Rung, runs: Sequence[EarlierRun], environment: str) -> str | None:
    """Return the success that such runs in the same environment reached, in words; None without any."""
    reached = [
        run.success
        for run in runs
        if run.environment == environment and run.success is not None and run.imitates_only == (rung is Rung.IMITATION)
    ]
    if not reached:
        return None
    low, high = percent(min(reached)), percent(max(reached))
    return f"{counted(len(reached), 'run')}: {low if low == high else f'{low[:-1]} to {high}'}"


async def earlier_runs(database: Database, project: str, backend: str, base_model: str) -> list[EarlierRun]:
    """Return the newest completed runs of a project that began with that base or a checkpoint of such a run, newest
    first."""
    began_with = case((Run.base_model == base_model, base_model), else_=func.split_part(Run.base_model, "@", 1))
    same = (Run.model_project == project, Run.backend == backend)
    bases = select(literal(base_model).label("name")).cte(recursive=True)
    trained = select(Run.model_project + "/" + Run.model_name).join(bases, began_with == bases.c.name).where(*same)
    bases = bases.union(trained)
    row = LedgerEntry
    supervised = func.coalesce(Run.request[("warm_start", "iterations")].as_integer(), 0)
    held_out = (row.phase == Phase.EVALUATE) | (row.iteration == 0)
    tokens = row.prompt_tokens + row.completion_tokens
    sums: dict[str, ColumnElement[Any]] = {
        "evaluated_s": func.sum(row.seconds).filter(held_out),
        "evaluated": func.sum(tokens).filter(held_out),
        "trained_s": func.sum(row.seconds).filter(~held_out, row.iteration > supervised),
        "trained": func.sum(tokens).filter(row.phase == Phase.ROLLOUT, row.iteration > supervised),
        "imitated_s": func.sum(row.seconds).filter(~held_out, row.iteration <= supervised),
    }
    query = (
        select(
            *(Run.environment, Run.best_success, Run.request),
            (Run.iterations_total <= supervised).label("imitates_only"),
            *(column.label(name) for name, column in sums.items()),
        )
        .join(row, row.run_id == Run.id)
        .where(Run.status == RunStatus.COMPLETED, *same, began_with.in_(select(bases.c.name)))
        .group_by(Run.id)
        .order_by(Run.id.desc())
        .limit(_RUNS)
    )
    async with database() as tx:
        return [_earlier_run(run) for run in await tx.execute(query)]


def _earlier_run(run: Any) -> EarlierRun:
    return EarlierRun(
        environment=run.environment,
        success=run.best_success,
        imitates_only=run.imitates_only,
        evaluated=_rate(run.evaluated_s, run.evaluated),
        trained=_rate(run.trained_s, run.trained),
        imitated=_rate(run.imitated_s, _demonstrations(run.request)),
    )


def _rate(seconds: float | None, amount: float | None) -> float | None:
    return float(seconds) / float(amount) if seconds and amount else None


def _demonstrations(request: Mapping[str, Json]) -> int:
    """Return how often a run with this request trains on a demonstration."""
    if not (warm_start := request.get("warm_start")):
        return 0
    source = warm_start["demonstrations"]
    return int((source.get("count") or source.get("oracle") or 0) * warm_start["epochs"])


def _seconds(request: Mapping[str, Json], pilot: Mapping[str, float], run: EarlierRun) -> float:
    """Return the seconds that a request takes at the pace of a run; for work that it did not do, at the pilot's."""
    rollouts = expected_rollouts(request, request["iterations"])
    seconds, tokens = pilot["seconds"], pilot["tokens"]
    evaluated = seconds if run.evaluated is None else tokens * run.evaluated
    trained = _TRAINED_TO_EVALUATED * seconds if run.trained is None else tokens * run.trained
    imitated = _IMITATED_TO_EVALUATED * seconds if run.imitated is None else run.imitated
    return (
        (rollouts.baseline + rollouts.evaluations) * evaluated
        + rollouts.training * trained
        + _demonstrations(request) * imitated
    )


async def forecasts(service: Resources, record: ImprovementRecord) -> dict[Rung, RungForecastOut]:
    """Return what imitation and GRPO will take, as far as they were not tried; nothing before the pilot."""
    improvement, pilot = record.improvement, record.improvement.pilot
    tried = {row.rung: row.state for row in record.candidates if row.state != CandidateState.PROPOSED}
    rungs = [rung for rung in (Rung.IMITATION, Rung.GRPO) if rung in improvement.request["rungs"] and rung not in tried]
    if pilot is None or not rungs or not improvement.facts["trainable"]:
        return {}
    demonstrated = improvement.facts["oracle"] or max(1, round(pilot["solved_once"] * pilot["tasks"]))
    plan = plan_of(learn_loop(record, Rung.GRPO, record.trainable.model), service.settings, improvement.id)
    base = improvement.request["model"]["base_model"] or service.settings.art_base_model
    runs = await earlier_runs(service.database, improvement.project, plan.backend, base)
    per_hour = await stored_price(service.database)
    imitates = Rung.IMITATION in rungs or tried.get(Rung.IMITATION) in (
        CandidateState.TRAINING,
        CandidateState.ACCEPTED,
    )
    made = dict[Rung, RungForecastOut]()
    for rung in rungs:
        request = learn_loop(record, rung, base, demonstrations={"oracle": demonstrated})
        whole = await asyncio.to_thread(request_with_defaults, request, service.settings, after_demonstrations=imitates)
        made[rung] = training(rung, whole, pilot, runs, per_hour)
    return made


def too_dear(
    record: ImprovementRecord, limits: Mapping[str, float], expected: Mapping[Rung, RungForecastOut]
) -> Mapping[Rung, str]:
    """Return the rungs that take more than what is left after the reserve for the test tasks, or whose answers will
    cost more later than training now, each with the reason."""
    left, pilot = limits.get("max_minutes"), record.improvement.pilot
    dearer = _dearer_later(record, expected)
    if left is None or pilot is None:
        return dearer
    answers = record.improvement.request["test"] * (1 + len(record.accepted))
    left -= answers * pilot["seconds"] / 60
    return dearer | {
        rung: f"It takes {clock(price.minutes[0])} to {clock(price.minutes[1])} minutes, "
        f"and {max(0.0, left):.1f} are left besides the test tasks."
        for rung, price in expected.items()
        if price.minutes[0] > left
    }


def _dearer_later(record: ImprovementRecord, expected: Mapping[Rung, RungForecastOut]) -> dict[Rung, str]:
    """Return why the listed model that passed its screening is not worth the price of its answers, if it is not."""
    models = (row for row in record.candidates if (row.rung, row.state) == (Rung.MODEL, CandidateState.PROPOSED))
    screened = (next(models, record.candidates[0]).evidence or {}).get("training", {})
    later = (record.improvement.request.get("answers") or 0) * (screened.get("usd") or 0)
    trainings = [price.usd[1] for price in expected.values() if price.usd]
    if not later or not trainings or later <= min(trainings):
        return {}
    answers = record.improvement.request["answers"]
    training = f"training costs {dollars(min(trainings))} at most"
    return {Rung.MODEL: f"{answers:,} answers of it would cost {dollars(later)}, and {training}."}


async def remaining(store: ImprovementStore, record: ImprovementRecord) -> Mapping[str, float]:
    """Return what is left of each limit for a new job, or for the one in progress, whose own use does not count. It is
    at most 0 if a limit was reached."""
    limits = {name: limit for name, limit in (record.improvement.request.get("budget") or {}).items() if limit}
    if not limits:
        return {}
    used = PriceOut.total(price for id, price in (await store.used(record)).items() if id != record.improvement.job_id)
    spent = {"max_minutes": used.minutes, "max_usd": used.usd or 0.0, "max_tokens": used.tokens}
    return {name: limit - spent[name] for name, limit in limits.items()}
