"""Verifies that the frozen answers of a run follow from its sessions: their choice and draw, tokens, outcomes and
forecasts, and that its estimated gains follow from the scores of held-out answers."""

import json
from datetime import datetime

from sqlalchemy import and_, select

from learnloop_service.app.agent_sessions.served import AnswerSource, answer_row, freeze
from learnloop_service.app.datasets.documents import stored_text
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Iteration, RolloutRecord, Run
from learnloop_service.app.operations.verify.figures import VerifiedFigures, unless_rounded
from learnloop_service.app.runs.journal_entries import text_of
from learnloop_service.training.journal import SERVED_RATIOS
from learnloop_service.training.loop.served_answers import estimated


async def verify_answers(database: Database, run: Run, figures: VerifiedFigures) -> None:
    """Freeze the answers again as of the time at which they were frozen, and compare them.

    Sessions that were deleted or withdrawn since are not compared, and neither are forecasts then, which all answers
    contribute to.
    """
    if (served := run.stored_request.served) is None:
        return
    config, project = run.stored_request.config, run.model_project
    rows = {row["id"]: row for row in json.loads(await stored_text(database, project, "served", served["sha256"]))}
    checkpoints = {row["checkpoint"] for row in rows.values()}

    async def has_base(checkpoint: str) -> bool:
        return checkpoint in checkpoints

    source, at = AnswerSource.model_validate(served["source"]), datetime.fromisoformat(served["frozen_at"])
    frozen = await freeze(database, project, source, config.seed, config.served_iterations, has_base, at)
    again = {row["id"]: row for row in frozen.rows}
    lacking = rows.keys() - again.keys()
    for id in again.keys() & rows.keys() if lacking else again.keys():
        stored, recomputed = rows.get(id, {}), again[id]
        recomputed["forecast"] = unless_rounded(stored.get("forecast"), recomputed["forecast"])
        for name in recomputed.keys() - ({"forecast"} if lacking else ()):
            figures.compare(stored.get("iteration"), f"{name} of {id}", stored.get(name), recomputed[name])
    its = and_(Iteration.run_id == RolloutRecord.run_id, Iteration.iteration == RolloutRecord.iteration)
    scored = select(RolloutRecord.value, Iteration.iteration, Iteration.train_metrics).join(Iteration, its)
    async with database() as tx:
        archived = await tx.execute(scored.where(RolloutRecord.run_id == run.id, RolloutRecord.name == SERVED_RATIOS))
    for value, iteration, metrics in archived:
        estimate = estimated([answer_row(row) for row in rows.values()], json.loads(text_of(value) or "{}"))
        for name, figure in estimate.items():
            figures.compare(iteration, name, metrics.get(name), unless_rounded(metrics.get(name), figure))
