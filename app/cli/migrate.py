"""`learnloop migrate`: migrates the database's schema before processes of a new version start."""

import asyncio
from typing import TYPE_CHECKING

from learnloop_service.app.cli.serve import plainly, settings_with
from learnloop_service.app.cli.terminal import Failure, results

if TYPE_CHECKING:  # importing SQLAlchemy is slow
    from sqlalchemy import URL


def migrate() -> None:
    """Bring the schema of the database at DATABASE_URL to this version, and exit.

    `serve` and `worker` do so themselves when they start. As a step of its own it shows an error before any of them is
    replaced.
    """
    settings = settings_with()
    if settings.database_url is None:
        raise Failure("DATABASE_URL is not set; `learnloop serve` brings its embedded database up to date itself")
    with plainly():
        from learnloop_service.app.db.database import parse_url

        asyncio.run(_migrate(parse_url(settings.database_url.get_secret_value())))
    results.print("the database has the schema of this version")


async def _migrate(url: "URL") -> None:
    from learnloop_service.app.db.database import make_engine
    from learnloop_service.app.db.migration import migrate_when_up

    database_engine = make_engine(url)
    try:
        await migrate_when_up(database_engine)
    finally:
        await database_engine.dispose()
