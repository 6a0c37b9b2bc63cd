"""A run's usage by phase, and its budget."""

from dataclasses import asdict

from sqlalchemy import select

from learnloop_service.app.api.dependencies import (
    CurrentDatabase,
    CurrentStore,
    Limit,
    NumberCursor,
    RunId,
)
from learnloop_service.app.api.presentation import ledger_totals
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.tables import LedgerEntry, Run
from learnloop_service.app.domain.stored_request import StoredBudget
from learnloop_service.app.runs.cost import cost_of
from learnloop_service.app.runs.ledger import Totals, totals
from learnloop_service.app.schemas.results import BudgetState, Ledger, LedgerRow

router = keyed_router("results")


@router.get("/runs/{run_id}/ledger")
async def get_ledger(
    store: CurrentStore,
    database: CurrentDatabase,
    run_id: RunId,
    cursor: NumberCursor = None,
    limit: Limit = 50,
) -> Ledger:
    """List what each phase of a run's iterations used: tokens, seconds and dollars. Wasted work is listed, too."""
    run = await store.get(run_id)
    query = (
        select(LedgerEntry)
        .where(LedgerEntry.run_id == run_id, LedgerEntry.id > int(cursor or 0))
        .order_by(LedgerEntry.id)
        .limit(limit + 1)
    )
    async with database() as tx:
        rows = (await tx.execute(query)).scalars().all()
        sums = await totals(tx, run_id)
    price = run.machine_price_per_hour
    return Ledger(
        items=[_row(row, price) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
        totals=ledger_totals(sums, price),
        budget=_budget(run, sums),
    )


def _row(row: LedgerEntry, price_per_hour: float | None) -> LedgerRow:
    return LedgerRow.of(row).model_copy(
        update={"machine_usd": cost_of([row.usd], row.seconds, price_per_hour).machine_usd}
    )


def _budget(run: Run, sums: Totals) -> BudgetState:
    spent = {f"spent_{unit}": value for unit, value in asdict(sums.spent).items()}
    return BudgetState(**asdict(run.stored_request.budget or StoredBudget()), **spent)
