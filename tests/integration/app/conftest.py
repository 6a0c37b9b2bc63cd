"""One engine process for all tests of models over HTTP: it takes seconds to start."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from environment.json_type import Json
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.api_file import current_api
from tests.integration.app.ended_runs import EndedRuns
from tests.integration.app.model_stage import ModelStage, keyed_engine, model_stage


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
