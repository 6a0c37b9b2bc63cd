"""Verifies that the rewards and the report of a rejudging follow from its stored verdicts.

The verdicts themselves are repeated where they must come out the same: by a judge that uses nothing but the rollouts,
and whose code has not changed since.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import select

from learnloop_service.app.db import json_text
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Run
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.stored_evaluation import Rejudge, RejudgingEvaluation
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.evaluations.judging_code import judging_code
from learnloop_service.app.evaluations.rejudge_report import stored_rejudge_report
from learnloop_service.app.evaluations.rejudgings import RejudgingStore
from learnloop_service.app.operations.named import built_environment
from learnloop_service.app.operations.verify.figures import VerifiedFigures
from learnloop_service.app.runs.configuration import make_judge
from learnloop_service.app.runs.stored_rollouts import judged_rollout
from learnloop_service.environment.base import Environment
from learnloop_service.judges import registry as judges
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.training.scoring import assign_rewards, judge_group
from learnloop_service.training.types import RunConfig


async def verify_rejudgings(database: Database, data_dir: Path, run: Run, figures: VerifiedFigures) -> int:
    """Compare the figures of the run's completed rejudgings, and return the number of these."""
    query = select(EvaluationJob).where(
        EvaluationJob.run_id == run.id, EvaluationJob.status == EvaluationStatus.COMPLETED
    )
    async with database() as tx:
        jobs = (await tx.execute(query.order_by(EvaluationJob.id))).scalars().all()
    for job in jobs:
        try:
            await _verify(database, data_dir, run.stored_request.config, job, figures)
        except DATABASE_DOWN:
            raise
        except Exception as error:  # of the environment, for an outcome or a score that it cannot have had
            computed = f"cannot be computed: {type(error).__name__}: {error}"
            figures.compare(None, f"rejudging {job.id}", "as stored", computed)
    return len(jobs)


async def _verify(
    database: Database, data_dir: Path, config: RunConfig, job: EvaluationJob, figures: VerifiedFigures
) -> None:
    request = RejudgingEvaluation.model_validate(job.request)
    assert job.report is not None
    store = RejudgingStore(database)
    groups, judge = await store.groups(request.rejudge, config), _judge(request.judge, request.rejudge)
    with closing(await built_environment(database, data_dir, request.environment, job.project)) as environment:
        for group in groups:
            rows, verdicts = await store.whole(group.ids), await store.whole_verdicts(job.id, group.ids)
            scores = await _scores(judge, environment, rows)
            for repeat in range(request.rejudge.repeats):
                where = f" in repeat {repeat + 1} of rejudging {job.id}"
                repeat_verdicts = [verdicts[row.id, repeat] for row in rows]
                await asyncio.to_thread(figures.compare_group, environment, rows, repeat_verdicts, where)
                for row, verdict in zip(rows, repeat_verdicts, strict=True):
                    if row.id in scores:
                        figures.compare(row.iteration, f"score{where}", verdict.score, scores[row.id], row.id)
    recomputed = json.loads(json_text.dumps(await stored_rejudge_report(store, job.id, request.rejudge, groups)))
    comparable = {
        name: value for name, value in recomputed.items() if name in job.report["rejudge"]
    }  # an older report has fewer
    for name, value in comparable.items():
        figures.compare(None, f"{name} in the report of rejudging {job.id}", job.report["rejudge"][name], value)


def _judge(choice: Choice, rejudge: Rejudge) -> Judge | None:
    """Return the judge, if its verdicts must be the same again."""
    if not judges.traits(choice.name).repeatable or rejudge.code != judging_code(choice.name):
        return None
    return make_judge(choice, JudgeServices())


async def _scores(judge: Judge | None, environment: Environment, rows: Sequence[Any]) -> dict[str, float | None]:
    """Return the scores that the judge gives to the rollouts, by their ids."""
    if judge is None:
        return {}
    rollouts = [judged_rollout(row) for row in rows]
    scenario = rollouts[0].scenario
    group = assign_rewards(environment, scenario, rollouts, await judge_group(judge, scenario, rollouts))
    return {scored.rollout.id: scored.score.value for scored in group.rollouts}
