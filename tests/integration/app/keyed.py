"""A service that asks for keys, with a way to make some, and its database."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.app.auth.keys import Keys, NewKey
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

OPERATOR_KEY = "an operator key of more than 32 characters".replace(" ", "-")
_DEFAULTS: dict[str, Any] = {"require_keys": "always", "operator_key": OPERATOR_KEY, "failed_keys_per_minute": 0}


def bearer(key: str) -> dict[str, str]:
    """The header of that key."""
    return {"authorization": f"Bearer {key}"}


@dataclass(frozen=True)
class Keyed:
    """A service that asks for keys; `client` sends none by itself."""

    client: httpx.AsyncClient
    database: Database

    async def new(
        self, project: str = "mail", scopes: Iterable[Scope] = (Scope.READ, Scope.WRITE), **more: Any
    ) -> NewKey:
        """A key straight from the database."""
        return await Keys(self.database).create(project=project, name="a test", scopes=scopes, **more)

    async def headers(self, project: str = "mail", scopes: Iterable[Scope] = (Scope.READ, Scope.WRITE)) -> Any:
        """Headers with a new key."""
        return bearer((await self.new(project, scopes)).key)


@asynccontextmanager
async def keyed(data_dir: Path, database_url: str, *, backend: Any = None, **more: Any) -> AsyncIterator[Keyed]:
    """The service with LEARNLOOP_REQUIRE_KEYS=always."""
    settings = settings_for(data_dir, database_url, **_DEFAULTS | more)
    engine = make_engine(parse_url(database_url))
    try:
        async with served(settings, ScriptedLoop(), backend) as client:
            yield Keyed(client, make_database(engine))
    finally:
        await engine.dispose()
