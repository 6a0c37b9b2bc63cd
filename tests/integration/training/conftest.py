"""One engine for the tests that need one, and a backend on it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from learnloop_service.training.backends.embedded import EmbeddedBackend, connect
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy, lossy_proxy
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """It has the shipped base model, and a random one, `random`, that can talk for long."""
    base = make_tiny_model(tmp_path_factory.mktemp("base"), overrides={"max_position_embeddings": 32_768})
    with EngineProcess(tmp_path_factory.mktemp("engine"), "--base-model", f"random={base}", "--slots", "16") as process:
        yield process


@pytest.fixture
async def proxy(engine: EngineProcess) -> AsyncIterator[LossyProxy]:
    """A way to the engine that loses connections when a test asks it to."""
    async with lossy_proxy(engine.base_url) as proxy:
        yield proxy


@pytest.fixture
async def backend(engine: EngineProcess) -> AsyncIterator[EmbeddedBackend]:
    backend = await connect(engine.base_url, "none")
    yield backend
    await backend.close()
