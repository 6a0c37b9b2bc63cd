"""Fixtures of the tests of the service. One engine process is for all tests of models: it takes seconds to start."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import URL

from learnloop_service.app.db.database import Database
from learnloop_service.environment.json_type import Json
from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.api_file import current_api
from tests.integration.app.ended_runs import EndedRuns
from tests.integration.app.model_stage import ModelStage, keyed_engine, model_stage
from tests.integration.app.served import served, settings_for
from tests.opened_database import opened_database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The test's database, without a service."""
    async with opened_database(database_url) as opened:
        yield opened


@pytest.fixture
async def client(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service with a scripted learn loop."""
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        yield client


@pytest.fixture(scope="session")
def api() -> Json:
    return current_api()


@pytest.fixture(scope="session")
def model_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine that asks for its key, with the base model `tiny`."""
    with keyed_engine(tmp_path_factory.mktemp("models")) as process:
        yield process


@pytest.fixture(scope="session")
def ended_runs(postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> EndedRuns:
    return EndedRuns(postgres, tmp_path_factory.mktemp("ended"))


@pytest.fixture
async def stage(model_engine: EngineProcess, data_dir: Path, database_url: str) -> AsyncIterator[ModelStage]:
    """A service over it, with a trained model of the project `mail`."""
    async with model_stage(model_engine, data_dir, database_url) as made:
        yield made
