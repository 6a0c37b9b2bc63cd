"""New models of the real engine."""

from learnloop_service.environment.json_type import Json
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.model_stage import engine_http
from tests.integration.cli.conftest import learnloop as learnloop
from tests.integration.engine.training_client import create_model, sampled_group, train


async def trained_model(engine: EngineProcess, name: str, steps: int, **fields: Json) -> str:
    """A new model of mail with so many steps; its name."""
    async with engine_http(engine) as http:
        model = await create_model(http, name, project="mail", **fields)
        group = await sampled_group(http, f"mail/{name}")
        for _ in range(steps):
            await train(http, model["id"], [group])
    return f"mail/{name}"
