"""A process with the real service, learn loop and evaluations, whose backend is the scripted engine's."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from benchmarks import processes
from benchmarks.durability.harness import Serving, answering
from benchmarks.scripted.worlds import REINFORCED, SUPERVISED
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.main import create_app, server_config
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import (
    Backend,
    BackendUnavailable,
    Endpoint,
    ModelSpec,
    Policy,
    StepConflict,
    SupervisedRequest,
    TrainOutcome,
    TrainRequest,
)
from learnloop_service.training.protocol.model_facts import Reproducibility

_LEASE_S = 8
"""A busy machine takes seconds for a statement."""


@dataclass(frozen=True)
class ScriptedPolicy:
    """A model of the scripted engine."""

    engine_url: str
    name: str
    settle_timeout_s = 0.0
    reproducibility = Reproducibility(True, "It is scripted.")

    async def step(self) -> int:
        return int((await _asked(self.engine_url, name=self.name))["step"])

    def endpoint(self, step: int | None = None) -> Endpoint:
        return Endpoint(f"{self.engine_url}/v1", "none", self.name if step is None else f"{self.name}@{step}")

    async def submit(self, request: TrainRequest) -> str:
        return await self._train(REINFORCED, request.expected_step)

    async def submit_supervised(self, request: SupervisedRequest) -> str:
        return await self._train(SUPERVISED, request.expected_step)

    async def _train(self, kind: str, expected_step: int) -> str:
        await _asked(self.engine_url, do="train", name=self.name, kind=kind, expected_step=expected_step)
        return f"job-{expected_step + 1}"

    async def follow(
        self, job_id: str, expected_step: int, report: Callable[[int, int], None] | None = None
    ) -> TrainOutcome:
        return TrainOutcome(expected_step + 1, {"loss": 0.5})

    async def metrics(self, step: int) -> dict[str, float]:
        return {"loss": 0.5}

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        return []


@dataclass(frozen=True)
class ScriptedBackend:
    """The backend of the scripted engine at a URL."""

    engine_url: str
    name = "embedded"

    async def connect(self, name: str) -> Backend:
        return self

    async def register(self, model: ModelSpec) -> Policy:
        name = f"{model.project}/{model.name}"
        await _asked(self.engine_url, do="add", name=name, base=model.base_model)
        return ScriptedPolicy(self.engine_url, name)

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        newest = (await _asked(self.engine_url, name=f"{project}/{name}"))["step"]
        return frozenset() if newest is None else frozenset(range(newest + 1))

    async def delete(self, model: ModelSpec) -> None:
        return None

    async def close(self) -> None:
        return None


async def _asked(engine_url: str, **request: Json) -> Json:
    """Return the engine's reply. Raises BackendUnavailable, and StepConflict."""
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(engine_url, json=request)
    except httpx.TransportError as error:
        raise BackendUnavailable(f"the scripted engine does not answer: {error!r}") from error
    if response.status_code == httpx.codes.CONFLICT:
        raise StepConflict(str(request))
    return response.json()


@contextmanager
def scripted_service(port: int, directory: Path, database_url: str, engine_url: str, bases: str) -> Iterator[Serving]:
    """Start the service, and yield it when it answers. `bases` are its base models, separated by commas."""
    directory.mkdir(exist_ok=True)
    flags = {"--data-dir": directory, "--database": database_url, "--engine-url": engine_url, "--bases": bases}
    arguments = [str(part) for flag in ({"--port": port} | flags).items() for part in flag]
    with answering(processes.module(__name__, *arguments, log=directory / "service.log"), port) as it:
        yield it


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--engine-url", required=True)
    parser.add_argument("--bases", required=True)
    options = parser.parse_args()
    configure_logs("info", "json")
    settings = load_settings(
        _env_file=None,
        data_dir=options.data_dir,
        database_url=options.database,
        engine_url=options.engine_url,
        engine_base_models={name: Path("/elsewhere") for name in options.bases.split(",")},
        port=options.port,
        max_concurrent_runs=4,
        lease_s=_LEASE_S,
        rate_per_s=0,
    )
    config = server_config(create_app(settings, connect=ScriptedBackend(options.engine_url).connect), settings)
    config.lifespan = "on"
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
