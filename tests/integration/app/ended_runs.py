"""Runs of the sales agent that are completed: each is made once in a process of tests, and copied for who wants it."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import URL

from tests.fixtures import MIGRATED, database
from tests.integration.app.sales_runs import completed, sales_service


@dataclass(frozen=True)
class EndedRun:
    """A service whose only run is completed."""

    client: httpx.AsyncClient
    run: Any
    database_url: str
    data_dir: Path


@dataclass(frozen=True)
class _Made:
    database: str
    data_dir: Path
    run_id: str


class EndedRuns:
    """They last as long as the Postgres server; `directory` has their files."""

    def __init__(self, server: URL, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._made: dict[str, _Made] = {}

    @asynccontextmanager
    async def copy(self, data_dir: Path, **request: Any) -> AsyncIterator[EndedRun]:
        """A service with a copy of the run of that request, over the empty `data_dir`."""
        name = json.dumps(request, sort_keys=True)
        if name not in self._made:
            self._made[name] = await self._make(request)
        made = self._made[name]
        shutil.copytree(made.data_dir / "runs", data_dir / "runs")
        async with database(self._server, made.database) as url, sales_service(data_dir, url) as client:
            run = (await client.get(f"/runs/{made.run_id}")).raise_for_status().json()
            yield EndedRun(client, run, url, data_dir)

    async def _make(self, request: Any) -> _Made:
        data_dir = self._directory / str(len(self._made))
        data_dir.mkdir()
        async with database(self._server, MIGRATED, keep=True) as url, sales_service(data_dir, url) as client:
            run = await completed(client, **request)
        return _Made(httpx.URL(url).path.removeprefix("/"), data_dir, run["run_id"])
