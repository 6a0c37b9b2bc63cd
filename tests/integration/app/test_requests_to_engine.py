"""What a question costs: the engine is asked for the sampling, and for nothing before it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from learnloop_service.app.db.tables import Promotion
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.environment.email_search.synthetic import address_of
from learnloop_service.training.backends import embedded
from learnloop_service.training.backends.base import Backend
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy, lossy_proxy
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ENGINE_KEY, ModelStage, model_stage

QUESTION = {"question": "When is the kickoff?", "inbox_address": address_of("test", 0, 3)}
CHAT = {"messages": [{"role": "user", "content": "When?"}], "max_tokens": 1}
SAMPLING = "POST /v1/chat/completions"


class _RealBackend(ScriptedBackend):
    """Connects to the engine at that URL."""

    async def connect(self, name: str) -> Backend:
        return await embedded.connect(self.endpoint_url, ENGINE_KEY)


@pytest.fixture
async def observed(
    model_engine: EngineProcess, data_dir: Path, database_url: str
) -> AsyncIterator[tuple[ModelStage, LossyProxy]]:
    """A service, and the proxy that notes each of its requests to the engine."""
    async with (
        lossy_proxy(model_engine.base_url) as proxy,
        model_stage(
            model_engine,
            data_dir,
            database_url,
            engine_url=proxy.url.removesuffix("/v1"),
            backend=_RealBackend(proxy.url),
        ) as stage,
    ):
        stage.service.client.headers.update(bearer(await stage.key()))
        yield stage, proxy


async def test_asking_is_one_kind_of_request(observed: tuple[ModelStage, LossyProxy]) -> None:
    stage, proxy = observed
    run_id = await stage.run_of()
    promotion = Promotion(project="mail", name="live", backend="embedded", model_name="caller", step=1, actor="a test")
    await Promotions(stage.service.database).promote(promotion)
    names = ("tiny", CALLER, f"{CALLER}@1", "mail/live", run_id)
    for path, body in (
        *(("/ask", {"model": name, **QUESTION}) for name in names),
        ("/ask", {"run_id": run_id, **QUESTION}),
        ("/ask", {"run_id": run_id, "checkpoint": 0, **QUESTION}),
        *(("/v1/chat/completions", {"model": name, **CHAT}) for name in names),
    ):
        proxy.requests.clear()
        reply = await stage.service.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        # On a busy machine the service asks whether the engine still works on the request.
        sampling_requests = {
            request for request in proxy.requests if not request.startswith("GET /v1/preview/requests/")
        }
        assert sampling_requests == {SAMPLING}, (path, body, proxy.requests)


async def test_a_checkpoint_that_is_not_there_is_the_engines_to_refuse(
    observed: tuple[ModelStage, LossyProxy],
) -> None:
    stage, proxy = observed
    run_id = await stage.run_of()
    reply = await stage.service.client.post("/ask", json={"run_id": run_id, "checkpoint": 7, **QUESTION})
    assert reply.status_code == 404
    assert f"Run {run_id} has no checkpoint 7; the newest one is 1" in reply.json()["detail"]
    assert proxy.requests == [SAMPLING]
