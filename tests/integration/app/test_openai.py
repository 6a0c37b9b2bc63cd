"""`/v1` of the service, with other people's clients, unmodified, over a real engine."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import learnloop_service.app.model_registry.proxy
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.tables import Promotion
from learnloop_service.app.model_registry.promotions import Promotions
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.keyed import bearer, keyed
from tests.integration.app.model_stage import CALLER, ModelStage, engine_http, model_stage
from tests.integration.engine.training_client import create_model
from tests.openai_clients import MESSAGES, NO_JSON, use_langchain, use_sync_client


async def _promote(stage: ModelStage, name: str, step: int, model: str = CALLER) -> None:
    project, _, bare_name = model.partition("/")
    promotion = Promotion(
        project=project, name=name, backend="embedded", model_name=bare_name, step=step, actor="a test"
    )
    await Promotions(stage.service.database).promote(promotion)


def _client(stage: ModelStage, key: str, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=stage.base_url, api_key=key, max_retries=0, **more)


async def _model_behind(stage: ModelStage, key: str, name: str) -> str:
    async with _client(stage, key) as client:
        return (await client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=1)).model


async def test_unmodified_clients(stage: ModelStage) -> None:
    key = await stage.key()
    for name in (CALLER, f"{CALLER}@1"):
        await asyncio.to_thread(use_sync_client, stage.base_url, key, name)
    await asyncio.to_thread(use_langchain, stage.base_url, key, CALLER)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_body_that_is_nested_too_deeply_is_refused(stage: ModelStage, path: str) -> None:
    for depth in (100, 990):  # at 990 Python reads it, and cannot write it
        nested = '{"a": ' * depth + "1" + "}" * depth
        start = f'{{"model": "{CALLER}", "max_tokens": 1, "messages": {json.dumps(MESSAGES)}, "input": "Hello"'
        headers = bearer(await stage.key()) | {"content-type": "application/json"}
        body = f'{start}, "metadata": {nested}}}'
        refused = await stage.service.client.post(path, content=body, headers=headers)
        assert refused.status_code == 400, refused.text
        assert "may not be nested more than 64 deep" in refused.json()["error"]["message"]


async def test_every_name_of_a_checkpoint(stage: ModelStage) -> None:
    key, run_id = await stage.key(), await stage.run_of()
    await _promote(stage, "live", 1)
    for name, behind in {
        "tiny": "tiny",
        CALLER: f"{CALLER}@1",
        f"{CALLER}@0": f"{CALLER}@0",
        run_id: f"{CALLER}@1",
        f"{run_id}@0": f"{CALLER}@0",
        "mail/live": f"{CALLER}@1",
    }.items():
        assert await _model_behind(stage, key, name) == behind
    await _promote(stage, "live", 0)  # rolled back
    assert await _model_behind(stage, key, "mail/live") == f"{CALLER}@0"
    await _promote(stage, "live", 1)
    await asyncio.to_thread(use_langchain, stage.base_url, key, "mail/live")

    async with _client(stage, key) as client:
        listed = {listed_model.id: listed_model async for listed_model in client.models.list()}
        assert {"tiny", CALLER, "mail/live"} <= set(listed)
        assert listed["mail/live"].model_extra == {"backend": "embedded", "promoted": f"{CALLER}@1"}
        assert (await client.models.retrieve("mail/live")).id == "mail/live"
        for name, step in {run_id: 1, f"{run_id}@0": 0}.items():
            retrieved = await client.models.retrieve(name)
            assert (retrieved.id, getattr(retrieved, "step", None)) == (name, step)
        for name in (f"{CALLER}@7", f"{run_id}@7", "mail/none", "mail/li ve", "", "a/b/c", "mail/\x00"):
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=1)
            assert missing.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve(f"{run_id}@7")
        early = await stage.run_of("mail/early", best_step=None)
        with pytest.raises(openai.ConflictError, match="no checkpoint yet"):
            await client.chat.completions.create(model=early, messages=MESSAGES, max_tokens=1)
        with pytest.raises(openai.ConflictError, match="no checkpoint yet"):
            await client.models.retrieve(early)


async def test_a_tenant_finds_its_own_models_only(stage: ModelStage) -> None:
    run_id = await stage.run_of()
    await _promote(stage, "live", 1)
    async with engine_http(stage.engine) as http:
        await create_model(http, "sales", project="mail", return_existing=True)  # called as the other project is
    async with _client(stage, await stage.key("sales")) as client:
        assert [listed_model.id async for listed_model in client.models.list()] == ["learnloop/tiny", "tiny"]
        absent = await _refusal(client, "nobody/nothing")
        for name in ("caller", "sales"):  # without a project, a name is one of the key's project
            assert f"no model 'sales/{name}'" in await _refusal(client, name)
        for name in (
            CALLER,
            f"{CALLER}@1",
            "mail/live",
            run_id,
            f"wandb-artifact:///local/{CALLER}",
        ):
            assert (await _refusal(client, name)).replace(name, "NAME") == absent.replace("nobody/nothing", "NAME")
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(name)
        assert (await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1)).model == "tiny"
    async with _client(stage, await stage.key("*")) as client:
        assert {CALLER, "mail/live", "mail/sales"} <= {listed_model.id async for listed_model in client.models.list()}


async def _refusal(client: openai.AsyncOpenAI, name: str) -> str:
    with pytest.raises(openai.NotFoundError) as refused:
        await client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=1)
    return json.dumps(refused.value.body)


async def test_a_tenant_continues_its_own_responses_only(stage: ModelStage) -> None:
    request: Any = {"model": "tiny", "input": "When?", "max_output_tokens": 2}
    async with (
        _client(stage, await stage.key()) as mail,
        _client(stage, await stage.key()) as same_project,
        _client(stage, await stage.key("sales"), project="mail") as sales,
        _client(stage, await stage.key("*")) as everybody,
    ):
        first = await mail.responses.create(**request)
        second = await same_project.responses.create(**request, previous_response_id=first.id)
        assert second.usage is not None
        assert first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens
        for other in (sales, everybody):
            with pytest.raises(openai.BadRequestError, match="send the items") as refused:
                await other.responses.create(**request, previous_response_id=first.id)
            assert refused.value.code == "previous_response_not_found"


async def test_responses_are_for_models_of_the_engine(stage: ModelStage) -> None:
    run_id = await stage.run_of()
    async with _client(stage, await stage.key()) as client:
        assert (await client.responses.create(model=run_id, input="?", max_output_tokens=1)).model == f"{CALLER}@1"
        await stage.run_of("mail/elsewhere", backend="serverless")
        with pytest.raises(openai.BadRequestError, match="only has chat completions") as refused:
            await client.responses.create(model="mail/elsewhere", input="?")
        assert refused.value.param == "model"


async def test_who_may_not(stage: ModelStage) -> None:
    request: Any = {"model": CALLER, "messages": MESSAGES, "max_tokens": 1}
    async with _client(stage, "ll_wrong") as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await client.chat.completions.create(**request)
        assert (wrong.value.code, wrong.value.response.headers["www-authenticate"]) == ("invalid_api_key", "Bearer")
        assert "x-request-id" in wrong.value.response.headers
    async with _client(stage, await stage.key(scopes=[Scope.READ])) as client:
        assert await client.models.list()
        with pytest.raises(openai.PermissionDeniedError, match="does not have the scope write"):
            await client.chat.completions.create(**request)
    async with _client(stage, await stage.key(scopes=[Scope.WRITE])) as client:
        with pytest.raises(openai.PermissionDeniedError, match="does not have the scope read"):
            await client.models.list()


async def test_bad_requests(stage: ModelStage) -> None:
    headers = bearer(await stage.key())

    async def refused(method: str, path: str, status: int, text: str, **more: Any) -> Any:
        reply = await stage.service.client.request(method, path, headers=headers, **more)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert text in error["message"]
        return error

    chat = "/v1/chat/completions"
    for content in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 10_000, *NO_JSON):
        await refused("POST", chat, 400, "The body", content=content)
    no_names: tuple[Any, ...] = (None, 3, ["mail"], {})
    for model in no_names:
        assert (await refused("POST", chat, 400, "model must be", json={"model": model}))["param"] == "model"
    assert (await refused("POST", chat, 400, "messages", json={"model": CALLER}))["param"] == "messages"
    await refused("POST", chat, 413, "at most", content=b"x" * 1_000_001)
    await refused("GET", chat, 405, "GET is not allowed for")
    await refused("POST", "/v1/embeddings", 404, "Nothing exists at", json={})
    await refused("GET", "/v1/models/mail/none", 404, "There is no model")
    without_v1 = await stage.service.client.post("/chat/completions", headers=headers, json={})
    assert (without_v1.status_code, "with `/v1` at its end" in without_v1.json()["detail"]) == (404, True)


async def test_each_key_has_its_rate(model_engine: EngineProcess, data_dir: Path, database_url: str) -> None:
    async with model_stage(model_engine, data_dir, database_url, rate_per_s=0.001, rate_burst=2) as stage:
        async with _client(stage, await stage.key()) as client:
            await client.models.list()
            await client.models.list()
            with pytest.raises(openai.RateLimitError) as limited:
                await client.models.list()
        assert limited.value.code == "rate_limit_exceeded"
        assert int(limited.value.response.headers["retry-after"]) >= 1


async def test_no_reply_outlives_its_deadline(
    model_engine: EngineProcess, data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real engine that hangs: before its first word, and in the middle of its reply."""
    monkeypatch.setattr(learnloop_service.app.model_registry.proxy, "DEADLINE_S", 2.0)
    async with (
        model_stage(model_engine, data_dir, database_url) as stage,
        _client(stage, await stage.key()) as client,
    ):
        request: Any = {"model": "tiny", "messages": MESSAGES, "seed": 3}
        await client.chat.completions.create(**request, max_tokens=1)
        try:
            stream = await client.chat.completions.create(**request, stream=True)
            model_engine.send_signal(signal.SIGSTOP)
            with pytest.raises(openai.APIError, match="took too long"):
                async for _ in stream:
                    pass
            with pytest.raises(openai.InternalServerError, match="no answer within 2 s") as late:
                await client.chat.completions.create(**request)
            assert late.value.status_code == 504
        finally:
            model_engine.send_signal(signal.SIGCONT)
        assert (await client.chat.completions.create(**request, max_tokens=1)).choices


async def test_an_engine_that_is_not_there(data_dir: Path, database_url: str) -> None:
    more = {"engine_url": "http://127.0.0.1:9", "engine_key": "none"}
    async with keyed(data_dir, database_url, **more) as service:
        headers = bearer((await service.new()).key)
        body = {"model": "learnloop/tiny", "messages": MESSAGES}
        for reply in (
            await service.client.post("/v1/chat/completions", headers=headers, json=body),
            await service.client.get("/v1/models", headers=headers),
        ):
            assert reply.status_code == httpx.codes.SERVICE_UNAVAILABLE
            assert int(reply.headers["retry-after"]) > 0
            assert reply.json()["error"]["type"] == "server_error"
