"""Alembic's entry. `learnloop_service.app.db.migration.migrate` hands it a connection; the command line opens
DATABASE_URL."""

import asyncio
from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.app.db.json_text import StorableText
from learnloop_service.app.db.tables import Base
from learnloop_service.app.settings import load_settings


def _as_plain_text(kind: str, item: Any, autogen_context: AutogenContext) -> str | Literal[False]:
    """A migration must not import types of today's code: our text type is TEXT."""
    return "sa.Text()" if kind == "type" and isinstance(item, StorableText) else False


def _run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, render_item=_as_plain_text)
    with context.begin_transaction():
        context.run_migrations()


async def _run_on_database_url() -> None:
    url = load_settings().database_url
    if url is None:
        raise SystemExit("set DATABASE_URL: the command line works on a named database only")
    engine = make_engine(parse_url(url.get_secret_value()))
    async with engine.begin() as connection:
        await connection.run_sync(_run)
    await engine.dispose()


if (connection_of_caller := context.config.attributes.get("connection")) is not None:
    _run(connection_of_caller)
else:
    asyncio.run(_run_on_database_url())
