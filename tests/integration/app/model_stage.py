"""A service that asks for keys over a real engine process, with a trained model of the project `mail`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.training.protocol.model_name import ModelName
from tests.fakes.engine_process import EngineProcess
from tests.fakes.stored_request import stored_request, stored_run
from tests.integration.app.keyed import Keyed, keyed
from tests.integration.engine.training_client import taught_caller

ENGINE_KEY = "the-key-of-this-engine"
CALLER = "mail/caller"
"""A model that was taught to call a tool; see `taught_caller`."""


@dataclass(frozen=True)
class ModelStage:
    """`service.client` sends no key by itself."""

    service: Keyed
    engine: EngineProcess

    @property
    def base_url(self) -> str:
        """Of the service's own OpenAI API."""
        return f"{self.service.client.base_url}/v1"

    async def key(self, project: str = "mail", **more: Any) -> str:
        return (await self.service.new(project, **more)).key

    async def run_of(self, model: str = CALLER, *, best_step: int | None = 1, backend: str = "embedded") -> str:
        """The id of a completed run that trained the model."""
        trained = ModelName.parse(model)
        names = {"model_project": trained.project, "model_name": trained.name, "base_model": "tiny"}
        more = names | {"backend": backend, "step": 1, "best_step": best_step}
        run = stored_run(status="completed", request=stored_request(max_turns=2), **more)
        async with self.service.database.begin() as tx:
            tx.add(run)
            return run.id


@contextmanager
def keyed_engine(directory: Path) -> Iterator[EngineProcess]:
    """An engine that asks for ENGINE_KEY."""
    from tests.fakes.tiny_model import make_tiny_model  # torch: seconds, for those who need it

    base = make_tiny_model(directory / "base", overrides={"max_position_embeddings": 4096})
    options = ("--base-model", f"tiny={base}", "--slots", "8", "--api-key-env", "STAGE_KEY")
    with EngineProcess(directory / "data", *options, environment={"STAGE_KEY": ENGINE_KEY}) as process:
        yield process


def engine_http(engine: EngineProcess) -> httpx.AsyncClient:
    """A client of the engine itself, with its key."""
    headers = {"authorization": f"Bearer {ENGINE_KEY}"}
    return httpx.AsyncClient(base_url=engine.base_url, headers=headers, timeout=60, trust_env=False)


@asynccontextmanager
async def model_stage(
    engine: EngineProcess, data_dir: Path, database_url: str, **more: Any
) -> AsyncIterator[ModelStage]:
    """The service over that engine."""
    async with engine_http(engine) as http:
        await taught_caller(http, "caller", "mail")
    shared = {
        "engine_url": engine.base_url.removesuffix("/v1"),
        "engine_key": ENGINE_KEY,
        "engine_base_models": {"tiny": engine.data_dir.parent / "base"},
        "rate_per_s": 0,
    }
    async with keyed(data_dir, database_url, **shared | more) as service:
        yield ModelStage(service, engine)
