"""Keeps with a run whether its backend repeats it to the bit."""

from sqlalchemy import update

from app.claims.lease import Lease
from app.db.database import Database
from app.db.tables import Run
from training.backends.base import Reproducibility


async def save_reproducibility(database: Database, lease: Lease[Run], found: Reproducibility) -> None:
    """A run that some worker's backend could not repeat stays irreproducible, whoever resumes it."""
    keep = (
        update(Run)
        .where(lease.held(), Run.reproducible.is_not(False))
        .values(reproducible=found.reproducible, reproducible_reason=found.reason)
    )
    async with database.begin() as tx:
        await tx.execute(keep)
