"""Verifies that the frozen answers of a run follow from its sessions: their choice and draw, tokens, outcomes and
forecasts."""

import json
from datetime import datetime

from learnloop_service.app.agent_sessions.served import AnswerSource, freeze
from learnloop_service.app.datasets.documents import stored_text
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.operations.verify.figures import VerifiedFigures, unless_rounded


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
