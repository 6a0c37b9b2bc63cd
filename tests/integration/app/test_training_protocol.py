"""ART's training protocol on the service's own URL: unmodified clients with the service's keys, over a real engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import update

from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.tables import Promotion, Run
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.training.backends.art_import import import_art
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.keyed import bearer, keyed
from tests.integration.app.model_stage import ModelStage, engine_http, model_stage
from tests.integration.engine.training_client import create_model, events, sample, sampled_group, submit, train


@asynccontextmanager
async def _client(stage: ModelStage, project: str = "mail", **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client with a key of the project, whose URLs are below `/v1` of the service."""
    headers = bearer(await stage.key(project, **more))
    async with httpx.AsyncClient(base_url=stage.base_url, headers=headers, timeout=60, trust_env=False) as http:
        yield http


async def test_arts_client_sees_models_checkpoints_and_events(stage: ModelStage) -> None:
    hosted = import_art("art.serverless.client")
    async with _client(stage) as http, hosted.Client(api_key=await stage.key(), base_url=stage.base_url) as client:
        model = await client.models.create(name="hosted", base_model="tiny")  # in the key's project
        assert (model.entity, model.project) == ("local", "mail")
        same = await client.models.create(project="mail", name="hosted", base_model="tiny", return_existing=True)
        assert same == model
        with pytest.raises(openai.ConflictError):
            await client.models.create(name="hosted", base_model="tiny")
        artifact = "wandb-artifact:///local/mail/hosted"
        group = await sampled_group(http, artifact)
        for _ in range(3):
            await train(http, model.id, [group])
        newest = client.models.checkpoints.list(model_id=model.id, order="desc", limit=1)
        assert [checkpoint.step async for checkpoint in newest] == [3, 2, 1, 0]
        replies = [await sample(http, name, 1) for name in ("hosted", artifact, f"{artifact}:step0")]
        assert replies[0]["logprobs"] == replies[1]["logprobs"] != replies[2]["logprobs"]
        deleted = await client.models.checkpoints.delete(model_id=model.id, steps=[0, 1, 8])
        assert (deleted.deleted_count, deleted.not_found_steps) == (2, [8])
        assert (await http.get(f"/preview/models/{model.id}")).json()["step"] == 3
        logged = {"trajectory_groups": [group], "split": "train"}
        assert (await http.post(f"/preview/models/{model.id}/log", json=logged)).status_code == 204
        fork = await client.models.create(name="fork", base_model="mail/hosted@3")
        await client.models.delete(model_id=fork.id)
        await client.models.delete(model_id=model.id)
        with pytest.raises(openai.NotFoundError):
            await client.models.delete(model_id=model.id)


async def test_supervised_jobs(stage: ModelStage) -> None:
    conversation = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "On Monday."}]
    async with _client(stage) as http:
        model = await create_model(http, "supervised", project="mail")
        body = {"model_id": model["id"], "training_data": [{"messages": conversation}] * 4}
        job = (await http.post("/preview/sft-training-jobs", json=body)).raise_for_status().json()
        assert (await events(http, job["id"]))[-1]["data"]["step"] == 1
        for kind in ("sft-training-jobs", "training-jobs"):
            assert (await http.get(f"/preview/{kind}/{job['id']}")).json()["status"] == "completed"
        # The engine's files may be of other projects.
        secret = stage.engine.data_dir / "theirs.jsonl"
        secret.write_text('{"messages": []}\n')
        named = {"model_id": model["id"], "training_data_url": secret.as_uri()}
        refused = await http.post("/preview/sft-training-jobs", json=named)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "training_data_url")


async def test_another_project_finds_nothing(stage: ModelStage) -> None:
    async with _client(stage) as http, _client(stage, "market") as other, _client(stage, "*") as everybody:
        model = await create_model(http, "theirs", project="mail", return_existing=True)
        group = await sampled_group(http, "mail/theirs")
        job = (await submit(http, model["id"], [group])).json()
        await events(http, job["id"])

        async def refusal(method: str, path: str, existing: str, absent: str, **more: Any) -> None:
            replies = [await other.request(method, path.format(id), **more) for id in (existing, absent)]
            assert [reply.status_code for reply in replies] == [404, 404], path
            assert replies[0].text.replace(existing, absent) == replies[1].text

        ids, jobs = (model["id"], "model-none"), (job["id"], "job-none")
        for path in ("/preview/models/{}", "/preview/models/{}/checkpoints"):
            await refusal("GET", path, *ids)
        await refusal("DELETE", "/preview/models/{}", *ids)
        await refusal("DELETE", "/preview/models/{}/checkpoints", *ids, json={"steps": [0]})
        await refusal("POST", "/preview/models/{}/log", *ids, json={})
        for kind in ("training-jobs", "sft-training-jobs"):
            for path in ("/preview/{}/{{}}", "/preview/{}/{{}}/events"):
                await refusal("GET", path.format(kind), *jobs)
        replies = [await submit(other, id, [group]) for id in ids]
        assert [reply.status_code for reply in replies] == [404, 404]
        assert replies[0].text.replace(model["id"], "model-none") == replies[1].text
        assert replies[0].json()["error"]["code"] == "model_not_found"

        for fields, status in (
            ({"project": "mail"}, 403),
            ({"base_model": "mail/theirs@0"}, 404),
            ({"base_model": "wandb-artifact:///local/mail/theirs"}, 404),
            ({"base_model": str(stage.engine.data_dir / "models")}, 404),
            ({"base_model": 3}, 422),
        ):
            body = {"name": "taken", "base_model": "tiny", **fields}
            refused = await other.post("/preview/models", json=body)
            assert refused.status_code == status, refused.text
            assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert (await other.get("/preview/models")).json()["data"] == []
        assert model["id"] in {listed["id"] for listed in (await everybody.get("/preview/models")).json()["data"]}
        assert (await everybody.get(f"/preview/training-jobs/{job['id']}")).json()["model_id"] == model["id"]
        # An id is never part of a path on the engine as it is.
        for id in ("..", "%2e%2e", "a%3fb", "x" * 65, "a%2fb", "%00"):
            assert (await http.get(f"/preview/models/{id}/checkpoints")).status_code == 404, id
            assert (await http.get(f"/preview/training-jobs/{id}")).status_code == 404, id


async def test_a_body_is_about_one_model_and_says_so_first(stage: ModelStage) -> None:
    async with _client(stage) as http, engine_http(stage.engine) as engine:
        own_model = await create_model(http, "mine", project="mail")
        theirs = await create_model(engine, "other", project="market")
        group = '"trajectory_groups": []'
        for body, param in (
            (f'{{"model_id": "{own_model["id"]}", {group}, "model_id": "{theirs["id"]}"}}', "model_id"),
            (f'{{{group}, "model_id": "{own_model["id"]}"}}', "model_id"),
            ('{"model_id": 3}', "model_id"),
            ("[]", "model_id"),
            ("", "model_id"),
        ):
            refused = await http.post("/preview/training-jobs", content=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


async def test_a_model_of_a_live_run_is_left_alone(stage: ModelStage) -> None:
    async with _client(stage) as http:
        model = await create_model(http, "busy", project="mail")
        group = await sampled_group(http, "mail/busy")
        await train(http, model["id"], [group])
        run_id = await stage.run_of("mail/busy")
        path = f"/preview/models/{model['id']}"

        async def set_status(status: str) -> None:
            async with stage.service.database.begin() as tx:
                # Another engine's workers drive it: our own one must not take it, whatever its status.
                await tx.execute(update(Run).where(Run.id == run_id).values(status=status, engine="elsewhere"))

        async def conflict(reply: httpx.Response, text: str) -> None:
            assert reply.status_code == 409, reply.text
            assert text in reply.json()["error"]["message"]

        for status in ("queued", "running", "paused"):
            await set_status(status)
            await conflict(await submit(http, model["id"], [group]), f"Run {run_id} is training mail/busy")
            await conflict(await http.delete(path), f"Run {run_id} is training mail/busy")
            steps = await http.request("DELETE", f"{path}/checkpoints", json={"steps": [0]})
            await conflict(steps, f"Run {run_id} is training mail/busy")
        await set_status("completed")
        await train(http, model["id"], [group])
        await conflict(await http.delete(path), f"Run {run_id} needs mail/busy")
        steps = await http.request("DELETE", f"{path}/checkpoints", json={"steps": [1]})
        await conflict(steps, "is the best of run")
        assert (await http.get(path)).json()["step"] == 2

        promoted = await create_model(http, "shown", project="mail")
        promotion = Promotion(
            project="mail", name="live", backend="embedded", model_name="shown", step=0, actor="a test"
        )
        await Promotions(stage.service.database).promote(promotion)
        await conflict(await http.delete(f"/preview/models/{promoted['id']}"), "promoted as mail/live")


async def test_who_may_not(stage: ModelStage) -> None:
    async with _client(stage, scopes=[Scope.READ]) as reader, _client(stage, scopes=[Scope.WRITE]) as writer:
        assert (await reader.get("/preview/models")).status_code == 200
        for reply in (await reader.post("/preview/models", json={}), await writer.get("/preview/models")):
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "insufficient_permissions")
    reply = await stage.service.client.get("/v1/preview/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_job_is_posted_once(stage: ModelStage) -> None:
    async with _client(stage) as http:
        model = await create_model(http, "once", project="mail")
        group = await sampled_group(http, "mail/once")
        body = {"model_id": model["id"], "trajectory_groups": [group]}
        same = {"idempotency-key": "step-1"}
        jobs = [(await http.post("/preview/training-jobs", json=body, headers=same)).json()["id"] for _ in range(2)]
        assert jobs[0] == jobs[1]
        assert (await events(http, jobs[0]))[-1]["data"]["step"] == 1


async def test_bodies_have_their_own_bound(model_engine: EngineProcess, data_dir: Path, database_url: str) -> None:
    async with (
        model_stage(model_engine, data_dir, database_url, max_training_bytes=2_000_000) as stage,
        _client(stage) as http,
    ):
        model = await create_model(http, "bounded", project="mail")

        async def post(path: str, size: int) -> int:
            body = f'{{"model_id": "{model["id"]}", "trajectory_groups": [], "experimental_config": {{}}}}'
            return (await http.post(path, content=body + " " * (size - len(body)))).status_code

        assert await post("/preview/training-jobs", 1_900_000) == 200
        assert await post("/preview/training-jobs", 2_000_001) == 413
        assert await post("/preview/models", 1_000_001) == 413


async def test_an_engine_that_is_not_there(data_dir: Path, database_url: str) -> None:
    more = {"engine_url": "http://127.0.0.1:9", "engine_key": "none"}
    async with keyed(data_dir, database_url, **more) as service:
        headers = bearer((await service.new()).key)
        body = {"name": "agent", "base_model": "learnloop/tiny"}
        for reply in (
            await service.client.post("/v1/preview/models", headers=headers, json=body),
            await service.client.get("/v1/preview/models", headers=headers),
            await service.client.get("/v1/preview/training-jobs/job-1/events", headers=headers),
        ):
            assert reply.status_code == httpx.codes.SERVICE_UNAVAILABLE
            assert int(reply.headers["retry-after"]) > 0
            assert reply.json()["error"]["type"] == "server_error"
