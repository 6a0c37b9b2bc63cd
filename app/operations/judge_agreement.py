"""Measures how well two judges agree, by scoring stored rollouts of a run with both. The run itself does not change."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run, Trajectory
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import Conflict
from learnloop_service.app.operations.named import built_environment, built_judge, rebuilding
from learnloop_service.app.runs.stored_rollouts import judged_rollout
from learnloop_service.app.schemas.agreement import AgreeingJudge, Agreement, AgreementRequest, Disagreement
from learnloop_service.app.settings import Settings
from learnloop_service.app.worker.judge_services import judge_services
from learnloop_service.judges import agreement
from learnloop_service.judges.base import Judge, JudgeCall, Judgement, JudgeServices, Score
from learnloop_service.training.scoring import judge_group

_STORED = "stored"
_SHOWN = 100
_LARGEST_GROUP = 256
_AT_ONCE = 16
"""Number of groups that a judge scores concurrently."""


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """One judge's scores of the rollouts, in the same order."""

    name: str
    scores: Sequence[Score]
    calls: Sequence[JudgeCall] = ()

    def summary(self) -> AgreeingJudge:
        values = [score.value for score in self.scores if score.value is not None]
        costs = [call.cost_usd for call in self.calls]
        return AgreeingJudge(
            name=self.name,
            scored=len(values),
            mean=fmean(values) if values else None,
            requests=sum(call.requests for call in self.calls),
            cached=sum(call.cached for call in self.calls),
            prompt_tokens=sum(call.prompt_tokens for call in self.calls),
            completion_tokens=sum(call.completion_tokens for call in self.calls),
            cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        )


async def agreement_of(database: Database, settings: Settings, run: Run, request: AgreementRequest) -> Agreement:
    """Report on the agreement of the request's judges.

    Raises InvalidRequest for a judge that cannot be built, and Conflict if the run's environment cannot be built or the
    run has no such rollouts.
    """
    services = await services_of(database, settings, run)
    judges = [
        built_judge(Choice(name=choice.name, config=choice.config), services, ("body", "judges", index))
        for index, choice in enumerate(request.judges)
    ]
    groups = _whole_groups(await _newest(database, run.id, request), request.trajectories)
    if not groups:
        raise Conflict(f"Run {run.id} has no finished rollouts of the kind {request.kind} yet.")
    verdicts = [await _verdicts(judge, groups) for judge in judges]
    rows = [row for group in groups for row in group]
    if len(verdicts) == 1:
        scores = [Score(row.score, row.score_explanation or "") for row in rows]
        verdicts.insert(0, _Verdicts(_STORED, scores))
    return _report(run.id, rows, *verdicts)


async def services_of(database: Database, settings: Settings, run: Run) -> JudgeServices:
    """Return the services for judging stored rollouts of a run. Raises Conflict if its environment cannot be built."""
    choice, data_dir = run.stored_request.environment, settings.data_dir
    with rebuilding(f"The environment of run {run.id} cannot be rebuilt"):
        environment = await built_environment(database, data_dir, choice, run.model_project)
    with closing(environment):
        return judge_services(settings, database, asyncio.get_running_loop(), run, environment)


async def _newest(database: Database, run_id: str, request: AgreementRequest) -> Sequence[Trajectory]:
    """Return finished rollouts, newest first; more than requested, so that only a surplus group can be incomplete."""
    query = (
        select(Trajectory)
        .where(Trajectory.run_id == run_id, Trajectory.kind == request.kind, Trajectory.error.is_(None))
        .order_by(Trajectory.seq.desc())
        .limit(request.trajectories + _LARGEST_GROUP)
    )
    async with database() as tx:
        return (await tx.execute(query)).scalars().all()


def _whole_groups(rows: Sequence[Trajectory], most: int) -> list[list[Trajectory]]:
    """Group the rollouts by scenario and iteration, with at most `most` rollouts in total but at least one group."""
    groups: list[list[Trajectory]] = []
    count = 0
    for _, members in groupby(rows, key=lambda row: (row.iteration, row.split, row.mode, row.step, row.scenario_id)):
        group = list(members)[::-1]
        if groups and count + len(group) > most:
            break
        groups.append(group)
        count += len(group)
    return groups


async def _verdicts(judge: Judge, groups: Sequence[Sequence[Trajectory]]) -> _Verdicts:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def of_group(rows: Sequence[Trajectory]) -> Judgement:
        rollouts = [judged_rollout(row) for row in rows]
        async with gate:
            return await judge_group(judge, rollouts[0].scenario, rollouts)

    judgements = await asyncio.gather(*map(of_group, groups))
    scores = [score for judgement in judgements for score in judgement.scores]
    return _Verdicts(judge.name, scores, [call for judgement in judgements for call in judgement.calls])


def _report(run_id: str, rows: Sequence[Trajectory], one: _Verdicts, other: _Verdicts) -> Agreement:
    scored = list(zip(rows, one.scores, other.scores, strict=True))
    pairs = [(a.value, b.value) for _, a, b in scored if a.value is not None and b.value is not None]
    differing = sorted(
        ((row, a, b) for row, a, b in scored if a.value != b.value),
        key=lambda difference: -_distance(difference[1], difference[2]),
    )
    return Agreement(
        run_id=run_id,
        judges=[one.summary(), other.summary()],
        trajectories=len(rows),
        both_scored=len(pairs),
        same_decisions=agreement.same_decisions(pairs),
        kappa=agreement.kappa(pairs),
        rank_correlation=agreement.rank_correlation(pairs),
        disagreement_count=len(differing),
        disagreements=[
            Disagreement(
                trajectory_id=row.id,
                scenario_id=row.scenario_id,
                scores=[a.value, b.value],
                explanations=[a.explanation, b.explanation],
            )
            for row, a, b in differing[:_SHOWN]
        ],
    )


def _distance(one: Score, other: Score) -> float:
    """Return the distance between two scores; -1 if one is missing, so that such pairs are sorted last."""
    return -1.0 if one.value is None or other.value is None else abs(one.value - other.value)
