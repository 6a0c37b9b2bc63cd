"""Verifies what a run cost: against its judge calls, and against the rows of its ledger."""

import math

from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Iteration, JudgeCall, LedgerEntry, Run
from learnloop_service.app.operations.verify.figures import ROUNDING, VerifiedFigures, unless_rounded
from learnloop_service.app.runs.cost import COST, cost_of
from learnloop_service.training.phases import Phase


async def verify_cost(database: Database, run: Run, figures: VerifiedFigures) -> None:
    """Recompute the cost of a run whose judge calls are all stored."""
    async with database() as tx:
        calls = (await tx.execute(select(JudgeCall).where(JudgeCall.run_id == run.id))).scalars().all()
        rows = (await tx.execute(select(LedgerEntry).where(LedgerEntry.run_id == run.id))).scalars().all()
        timings = (await tx.execute(select(Iteration.timing).where(Iteration.run_id == run.id))).scalars().all()
        listed = (await tx.execute(select(COST).where(Run.id == run.id))).scalar_one()
    for name in ("prompt_tokens", "completion_tokens"):
        figures.compare(
            None, f"judge_{name}", getattr(run, f"judge_{name}"), sum(getattr(call, name) for call in calls)
        )
    usd = math.fsum(call.cost_usd or 0.0 for call in calls)
    figures.compare(None, "judge_cost_usd", run.judge_cost_usd, unless_rounded(run.judge_cost_usd, usd))
    saved = [row for row in rows if row.iteration < run.next_iteration]
    useful, whole = (math.fsum(row.usd or 0.0 for row in saved if every or not row.wasted) for every in (False, True))
    # Calls that were lost with an iteration's unfinished work are in the ledger only, as wasted.
    spent = whole if useful - ROUNDING <= usd <= whole else usd
    figures.compare(None, "usd of the ledger", whole, unless_rounded(whole, spent))
    worked = math.fsum(timing.get(f"{phase}_s", 0.0) for timing in timings for phase in Phase)
    seconds = math.fsum(row.seconds for row in rows)  # also of interrupted work, and between phases
    figures.compare(None, "seconds of the ledger", seconds, unless_rounded(seconds, max(seconds, worked)))
    if rows:
        cost = cost_of((row.usd for row in rows), seconds, run.machine_price_per_hour)
        figures.compare(None, "cost_usd", listed, unless_rounded(listed, cost.total_usd))
