"""One engine process for all tests of this folder, and clients for it."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.fakes.engine_process import EngineProcess
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.engine.training_client import taught_caller


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random base model."""
    return make_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="session")
def engine(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A running engine with the base model `tiny`, and `cut`, whose weights are not whole."""
    cut = tmp_path_factory.mktemp("cut") / "cut"
    shutil.copytree(base, cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    bases = ("--base-model", f"tiny={base}", "--base-model", f"cut={cut}")
    with EngineProcess(tmp_path_factory.mktemp("engine"), *bases, "--slots", "8") as process:
        yield process


@pytest.fixture
async def http(engine: EngineProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client whose URLs are below `/v1`."""
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as client:
        yield client


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client."""
    async with openai.AsyncOpenAI(base_url=engine.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def caller(http: httpx.AsyncClient) -> str:
    """The name, in project `test`, of a model that was taught to call the tool."""
    return (await taught_caller(http, "caller")).removeprefix("test/")
