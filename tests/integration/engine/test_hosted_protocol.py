"""Training a real engine process over HTTP, also through ART's unmodified client."""

import asyncio
import hashlib
import json

import httpx
import openai
import pytest

from tests.fakes.engine_process import EngineProcess
from tests.integration.engine.training_client import (
    asked_otherwise,
    create_model,
    events,
    sample,
    sampled_group,
    submit,
    train,
)


async def test_the_hosted_client_sees_pages_events_and_deletions(
    engine: EngineProcess, http: httpx.AsyncClient
) -> None:
    from art.serverless.client import Client

    async with Client(api_key="none", base_url=engine.base_url) as client:
        model = await client.models.create(project="test", name="hosted", base_model="tiny")
        same = await client.models.create(project="test", name="hosted", base_model="tiny", return_existing=True)
        assert same == model
        with pytest.raises(openai.ConflictError):
            await client.models.create(project="test", name="hosted", base_model="tiny")
        group = await sampled_group(http, "hosted")
        for _ in range(3):
            await train(http, model.id, [group])
        ascending = [checkpoint async for checkpoint in client.models.checkpoints.list(model_id=model.id, limit=2)]
        assert [checkpoint.step for checkpoint in ascending] == [0, 1, 2, 3]
        assert ascending[1].metrics["num_trajectories"] == 4
        descending = client.models.checkpoints.list(model_id=model.id, order="desc", limit=1)
        assert [checkpoint.step async for checkpoint in descending] == [3, 2, 1, 0]
        deleted = await client.models.checkpoints.delete(model_id=model.id, steps=[0, 1, 8])
        assert deleted.deleted_count == 2
        assert deleted.not_found_steps == [8]
        with pytest.raises(openai.NotFoundError):
            await client.models.checkpoints.delete(model_id="model-none", steps=[0])
        await client.models.delete(model_id=model.id)
        with pytest.raises(openai.NotFoundError):
            await client.models.delete(model_id=model.id)


async def test_supervised_jobs_of_the_hosted_client(engine: EngineProcess, http: httpx.AsyncClient) -> None:
    """What `train_sft` does once its data has a URL: the client's own request and event types."""
    from art.serverless.client import Client

    conversation = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "On Monday."}]
    data_file = engine.data_dir / "supervised.jsonl"
    data_file.write_text("".join(json.dumps({"messages": conversation}) + "\n" for _ in range(6)))
    async with Client(api_key="none", base_url=engine.base_url) as client:
        model = await client.models.create(project="test", name="supervised", base_model="tiny")
        job = await client.sft_training_jobs.create(
            model_id=model.id,
            training_data_url=data_file.as_uri(),
            config={"batch_size": 2, "learning_rate": [1e-2, 1e-2, 1e-3]},
        )
        await events(http, job.id)
        listed = [event async for event in client.sft_training_jobs.events.list(training_job_id=job.id, limit=2)]
        kinds = [event.type for event in listed if str(event.type) not in ("progress", "trained")]
        assert kinds == ["training_started", *["gradient_step"] * 3, "training_ended"]
        losses = [event.data["loss"] for event in listed if event.type == "gradient_step"]
        assert losses == sorted(losses, reverse=True)
        newest = [checkpoint async for checkpoint in client.models.checkpoints.list(model_id=model.id)][-1]
        assert newest.step == 1
        # What the client itself would send: data that only W&B has.
        with pytest.raises(openai.BadRequestError, match="training_data"):
            await client.sft_training_jobs.create(
                model_id=model.id, training_data_url="wandb-artifact:///me/project/agent-sft-data:v0"
            )


async def test_events_of_a_job(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "events")
    job = (await submit(http, model["id"], [await sampled_group(http, "events")])).json()
    all_events = await events(http, job["id"])
    kinds = [event["type"] for event in all_events]
    assert kinds[0] == "training_started"
    assert kinds[-3:] == ["gradient_step", "trained", "training_ended"]
    assert kinds.count("gradient_step") == all_events[0]["data"]["num_sequences"] == 1
    assert all(isinstance(value, float) for value in all_events[-3]["data"].values())
    assert all_events[-2]["data"] == {"step": 1, "metrics": all_events[-3]["data"]}
    assert all_events[-1]["data"]["step"] == 1
    assert all_events[-1]["data"]["trained"] is True
    assert all_events[-1]["data"]["metrics"] == all_events[-3]["data"]

    path = f"/preview/training-jobs/{job['id']}"
    described = (await http.get(path)).json()
    assert described["status"] == "completed"
    assert described["events"] == all_events
    first = (await http.get(f"{path}/events", params={"limit": 1})).json()
    assert first["data"] == all_events[:1]
    assert first["has_more"] is True
    # Nothing follows a finished job, so there is nothing to wait for.
    rest = await http.get(f"{path}/events", params={"after": all_events[-1]["id"], "wait_s": 30}, timeout=20)
    assert rest.json()["data"] == []
    assert (await http.get(f"{path}/events", params={"after": "nothing"})).status_code == 404


async def test_no_signal_leaves_the_step(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "flat")
    group = await sampled_group(http, "flat")
    for trajectory in group["trajectories"]:
        trajectory["reward"] = 0.3
    job = (await submit(http, model["id"], [group])).json()
    [warning] = job["warnings"]
    assert warning.startswith("In 1 of 1 groups all rewards are equal.")
    ended = (await events(http, job["id"]))[-1]["data"]
    assert ended["step"] == 0
    assert ended["trained"] is False
    metrics = ended["metrics"]
    assert metrics["num_groups_equal_rewards"] == 1
    assert metrics["num_groups_trainable"] == 0
    assert (await http.get(f"/preview/training-jobs/{job['id']}")).json()["warnings"] == [warning]


async def test_groups_that_teach_nothing_are_counted_among_the_others(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "flat-in-part")
    group = await sampled_group(http, "flat-in-part")
    flat = {"trajectories": [{**trajectory, "reward": 0.3} for trajectory in group["trajectories"]]}
    assert (await submit(http, model["id"], [group])).json()["warnings"] == []
    job = (await submit(http, model["id"], [group, flat])).json()
    assert job["warnings"][0].startswith("In 1 of 2 groups all rewards are equal.")
    metrics = (await events(http, job["id"]))[-1]["data"]["metrics"]
    assert metrics["num_groups_equal_rewards"] == 1
    assert metrics["num_groups_trainable"] == 1


async def test_a_job_without_a_sampled_token_fails(http: httpx.AsyncClient) -> None:
    """Its rewards differ, so somebody expects it to teach something."""
    model = await create_model(http, "unsampled")
    group = await sampled_group(http, "unsampled")
    flat = {"trajectories": [{**trajectory, "reward": 0.3} for trajectory in group["trajectories"]]}
    for number, trajectory in enumerate(group["trajectories"]):
        trajectory["messages_and_choices"][1] = {"role": "assistant", "content": f"Never said {number}."}
    job = (await submit(http, model["id"], [group, group, flat])).json()
    last = (await events(http, job["id"]))[-1]
    assert last["type"] == "training_failed"
    assert last["data"]["code"] == "no_sampled_tokens"
    assert "the rewards of 2 groups differ" in last["data"]["error_message"]
    assert (await http.get(f"/preview/models/{model['id']}")).json()["step"] == 0


async def test_figures_are_of_what_was_sampled(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "half")
    group = await sampled_group(http, "half")
    unsampled = {
        "trajectories": [
            {**trajectory, "messages_and_choices": [{"role": "assistant", "content": "Never said."}]}
            for trajectory in group["trajectories"]
        ]
    }
    metrics = (await train(http, model["id"], [group, unsampled]))["metrics"]
    assert metrics["num_groups_submitted"] == 2
    assert metrics["num_groups_trainable"] == 1
    assert metrics["num_trajectories_trainable"] <= len(group["trajectories"])


async def test_replies_of_trainable_models_carry_their_tokens(http: httpx.AsyncClient) -> None:
    await create_model(http, "spoken")

    async def tokens(model: str, **fields: object) -> list[str]:
        choice = await sample(http, model, seed=1, **fields)
        return [token["token"] for token in (choice["logprobs"] or {"content": []})["content"]]

    by_default = await tokens("spoken")
    assert by_default
    for name in ("spoken", "test/spoken@0", "wandb-artifact:///local/test/spoken:step0"):
        assert await tokens(name, logprobs=None) == by_default
    assert await tokens("spoken", logprobs=False) == []
    assert await tokens("tiny", logprobs=None) == []


async def test_jobs_of_a_model_run_in_order_and_a_step_is_trained_once(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "fenced")
    group = await sampled_group(http, "fenced")
    first, second = [(await submit(http, model["id"], [group])).json() for _ in range(2)]
    refused = await submit(http, model["id"], [group], expected_step=0)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "step_conflict"
    assert [(await events(http, job["id"]))[-1]["data"]["step"] for job in (first, second)] == [1, 2]
    assert (await submit(http, model["id"], [group], expected_step=0)).status_code == 409
    assert (await train(http, model["id"], [group], expected_step=2))["step"] == 3


async def test_the_same_requests_give_the_same_weights(http: httpx.AsyncClient, engine: EngineProcess) -> None:
    digests = []
    for name in ("twin-a", "twin-b"):
        model = await create_model(http, name)
        for _ in range(2):
            await train(http, model["id"], [await sampled_group(http, name)])
        directory = engine.data_dir / "models" / "test" / name / "checkpoints" / "000002"
        digests.append(
            [
                hashlib.sha256((directory / file).read_bytes()).hexdigest()
                for file in ("model.safetensors", "optimizer.safetensors")
            ]
        )
    assert digests[0] == digests[1]


async def test_a_fork_goes_its_own_way(http: httpx.AsyncClient) -> None:
    source = await create_model(http, "source")
    group = await sampled_group(http, "source")
    for _ in range(2):
        await train(http, source["id"], [group])
    fork = await create_model(http, "fork", base_model="test/source@1")
    assert fork["base_model"] == "tiny"
    assert fork["origin"] == "test/source@1"
    same = [await sample(http, name, seed=1) for name in ("source@1", "fork")]
    assert same[0]["logprobs"] == same[1]["logprobs"]
    await train(http, fork["id"], [group])
    assert (await sample(http, "source@1", seed=1))["logprobs"] == same[0]["logprobs"]
    assert (await sample(http, "fork@1", seed=1))["logprobs"] != same[0]["logprobs"]


async def test_an_adapter_is_trained_and_sampled(http: httpx.AsyncClient, engine: EngineProcess) -> None:
    model = await create_model(http, "adapter", tuning={"mode": "lora", "rank": 4})
    before = await sample(http, "adapter", seed=1)
    assert before["logprobs"] == (await sample(http, "tiny", seed=1))["logprobs"]
    await train(http, model["id"], [await sampled_group(http, "adapter")])
    assert (await sample(http, "adapter", seed=1))["logprobs"] != before["logprobs"]
    directory = engine.data_dir / "models" / "test" / "adapter" / "checkpoints" / "000001"
    assert (directory / "adapter_model.safetensors").is_file()
    assert not list(directory.glob("README*"))


async def test_asking_goes_on_while_a_model_is_trained(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "busy")
    group = await sampled_group(http, "busy")
    job = (await submit(http, model["id"], asked_otherwise(group, 30))).json()
    answers = await asyncio.gather(*(sample(http, "tiny", seed) for seed in range(8)))
    assert all(answer["message"]["content"] for answer in answers)
    assert (await events(http, job["id"]))[-1]["type"] == "training_ended"


async def test_deleting_a_model_fails_its_jobs(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "doomed")
    group = await sampled_group(http, "doomed")
    jobs = [(await submit(http, model["id"], asked_otherwise(group, 40))).json() for _ in range(2)]
    assert (await http.delete(f"/preview/models/{model['id']}")).status_code == 204
    last = [(await events(http, job["id"]))[-1] for job in jobs]
    assert last[1]["type"] == "training_failed"
    assert last[1]["data"]["code"] == "model_deleted"
    assert (await http.get(f"/preview/models/{model['id']}")).status_code == 404
    assert (await create_model(http, "doomed"))["id"] != model["id"]


async def test_logged_trajectories_are_kept(http: httpx.AsyncClient, engine: EngineProcess) -> None:
    model = await create_model(http, "logged")
    group = await sampled_group(http, "logged", count=1)
    body = {"model_id": model["id"], "trajectory_groups": [group], "split": "val"}
    assert (await http.post(f"/preview/models/{model['id']}/log", json=body)).status_code == 204
    files = list((engine.data_dir / "models" / "test" / "logged" / "trajectories" / "val").glob("000000-*.json"))
    assert len(files) == 1
    outside = await http.post(f"/preview/models/{model['id']}/log", json={**body, "split": "../x"})
    assert outside.status_code == 400
