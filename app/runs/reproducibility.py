"""Saves whether a run's backend can reproduce it bit for bit."""

from sqlalchemy import update

from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.training.protocol.model_facts import Reproducibility


async def save_reproducibility(database: Database, lease: Lease[Run], verdict: Reproducibility) -> None:
    """Save the verdict. Once a worker's backend could not reproduce the run, it stays irreproducible."""
    keep = (
        update(Run)
        .where(lease.held(), Run.reproducible.is_not(False))
        .values(reproducible=verdict.reproducible, reproducible_reason=verdict.reason)
    )
    async with database.begin() as tx:
        await tx.execute(keep)
