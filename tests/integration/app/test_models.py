"""Models over HTTP: their checkpoints, promoted names, exports and deletions, on a real engine."""

import asyncio
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select

from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.tables import Checkpoint, Iteration, Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.environment.email_search.synthetic import address_of
from learnloop_service.environment.json_type import Json
from tests.conditions import until
from tests.fakes.engine_process import EngineProcess
from tests.fakes.forked_engine import fork_server
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.integration.app.peft_reply import MAX_TOKENS, save_reply
from tests.integration.app.trained_models import trained_model
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop


@pytest.fixture(autouse=True)
async def _with_a_key(stage: ModelStage) -> None:
    stage.service.client.headers.update(bearer(await stage.key()))


def _directory(engine: EngineProcess, model: str, step: int) -> Path:
    return engine.data_dir / "models" / model / "checkpoints" / f"{step:06d}"


async def _get(stage: ModelStage, path: str, status: int = 200) -> Json:
    reply = await stage.service.client.get(path)
    assert reply.status_code == status, reply.text
    return reply.json()


async def _promote(stage: ModelStage, step: int, name: str, model: str = CALLER) -> httpx.Response:
    return await stage.service.client.post(f"/models/{model}/promote", json={"step": step, "as": name})


async def test_a_name_goes_from_checkpoint_to_checkpoint(stage: ModelStage) -> None:
    client = stage.service.client
    assert (await _promote(stage, 1, "live")).status_code == 201
    rolled_back = (await _promote(stage, 0, "live")).json()  # rolled back
    assert (rolled_back["name"], rolled_back["model"], rolled_back["step"]) == ("mail/live", CALLER, 0)
    history = (await _get(stage, "/promotions/mail/live"))["items"]
    assert [promotion["step"] for promotion in history] == [0, 1]
    assert history[0]["actor"].startswith("key:ll_")
    assert [promotion["step"] for promotion in (await _get(stage, "/promotions"))["items"]] == [0]
    reply = await client.post(
        "/ask",
        json={"model": "mail/live", "question": "When is the kickoff?", "inbox_address": address_of("test", 0, 3)},
    )
    assert reply.status_code == 200, reply.text
    assert (reply.json()["model"], reply.json()["step"]) == (f"{CALLER}@0", 0)

    assert (await _promote(stage, 7, "live")).status_code == 404
    assert (await _promote(stage, 0, "caller")).status_code == 409  # a model is called so
    assert (await _promote(stage, 0, "live", "mail/none")).status_code == 404
    for bad in ("", "a/b", "@3", "-x", "a" * 129):
        assert (await _promote(stage, 0, bad)).status_code == 422
    listed = {model["model"]: model for model in (await _get(stage, "/models"))["items"]}
    assert listed[CALLER] == {
        "model": CALLER, "backend": "embedded", "base_model": "tiny", "step": 1, "promoted_as": ["live"],
        "unusable": None,
    }  # fmt: skip
    assert listed["tiny"]["step"] is None


async def test_a_model_shows_what_its_runs_found_out(stage: ModelStage) -> None:
    run_id = await stage.run_of()
    row = {"run_id": run_id, "step": 1, "iteration": 4, "success": 0.75, "is_best": True}
    async with stage.service.database.begin() as tx:
        await tx.execute(insert(Checkpoint), [row])
    await _promote(stage, 1, "live")
    whole = await _get(stage, f"/models/{CALLER}")
    assert [checkpoint["step"] for checkpoint in whole["checkpoints"]] == [0, 1]
    first, second = whole["checkpoints"]
    assert (first["run_id"], first["success"], first["promoted_as"]) == (None, None, [])
    assert {name: second[name] for name in row} == row
    assert second["promoted_as"] == ["live"]
    assert second["metrics"]["loss"] > 0


async def test_an_export_is_the_checkpoint(stage: ModelStage, tmp_path: Path) -> None:
    directory = _directory(stage.engine, CALLER, 1)
    reply = await stage.service.client.get(f"/models/{CALLER}/export", params={"step": 1})
    assert reply.headers["content-type"] == "application/x-tar"
    assert int(reply.headers["content-length"]) == len(reply.content)
    with tarfile.open(fileobj=io.BytesIO(reply.content)) as tar:
        names = {name.removeprefix("caller-step1/") for name in tar.getnames()}
        tar.extractall(tmp_path, filter="data")
    assert {"model.safetensors", "config.json", "tokenizer.json", "manifest.json"} <= names
    assert "optimizer.safetensors" not in names
    manifest = json.loads((tmp_path / "caller-step1" / "manifest.json").read_text())
    assert set(manifest["files"]) == names - {"manifest.json"}
    for name, digest in manifest["files"].items():
        raw = (tmp_path / "caller-step1" / name).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == digest["sha256"]
        assert raw == (directory / name).read_bytes()
    newest = await stage.service.client.get(f"/models/{CALLER}/export")
    assert newest.content == reply.content
    await _get(stage, f"/models/{CALLER}/export?step=9", 404)
    await _get(stage, "/models/mail/none/export", 404)


async def test_an_exported_adapter_says_the_same_in_peft(stage: ModelStage, tmp_path: Path) -> None:
    name = await trained_model(stage.engine, "adapter", 2, tuning={"mode": "lora", "rank": 4})
    raw = (await stage.service.client.get(f"/models/{name}/export")).content
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        tar.extractall(tmp_path, filter="data")
    question = "When is the kickoff?"
    prompt: Json = {"messages": [{"role": "user", "content": question}], "temperature": 0, "logprobs": True}
    token_ids = {}
    for model in (name, "tiny"):
        body = prompt | {"model": model, "max_tokens": MAX_TOKENS}
        reply = (await stage.service.client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        token_ids[model] = [int(token["token"].removeprefix("token_id:")) for token in reply["logprobs"]["content"]]
    base, file = stage.engine.data_dir.parent / "base", tmp_path / "reply.json"
    process = fork_server().Process(target=save_reply, args=(base, tmp_path / "adapter-step2", question, file))
    process.start()
    await until(lambda: process.exitcode is not None)
    assert json.loads(file.read_text()) == token_ids[name]
    assert token_ids[name] != token_ids["tiny"]  # it learnt something


async def test_a_torn_checkpoint_is_neither_exported_nor_sampled_nor_promoted(stage: ModelStage) -> None:
    name = await trained_model(stage.engine, "torn", 3)
    weights = _directory(stage.engine, name, 2) / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    # It was whole when it was written, and is looked at again before it leaves.
    refused = await stage.service.client.get(f"/models/{name}/export", params={"step": 2})
    assert refused.status_code == 409
    assert "differs from its manifest" in refused.json()["detail"]
    assert [checkpoint["step"] for checkpoint in (await _get(stage, f"/models/{name}"))["checkpoints"]] == [0, 1, 3]
    assert (await _promote(stage, 2, "best", name)).status_code == 404
    body = {"model": f"{name}@2", "messages": [{"role": "user", "content": "When?"}]}
    assert (await stage.service.client.post("/v1/chat/completions", json=body)).status_code == 404


async def test_what_is_in_use_is_not_deleted(stage: ModelStage) -> None:
    client = stage.service.client
    name = await trained_model(stage.engine, "thinned", 4)
    run_id = await stage.run_of(name, best_step=2)
    rows = [{"run_id": run_id, "step": step, "iteration": step, "is_best": step == 2} for step in range(5)]
    async with stage.service.database.begin() as tx:
        await tx.execute(insert(Checkpoint), rows)
    await _promote(stage, 1, "thin", name)
    for step, status, text in (
        (1, 409, "is promoted as mail/thin"),
        (2, 409, f"is the best of run {run_id}"),
        (4, 409, "is the newest"),
        (9, 404, "no checkpoint 9"),
    ):
        refused = await client.delete(f"/models/{name}/checkpoints/{step}")
        assert (refused.status_code, text in refused.json()["detail"]) == (status, True), refused.text
    deleted = await client.delete(f"/models/{name}/checkpoints/3")
    assert [checkpoint["step"] for checkpoint in deleted.json()["checkpoints"]] == [0, 1, 2, 4]
    assert not _directory(stage.engine, name, 3).exists()
    async with stage.service.database() as tx:
        gone = select(Checkpoint.step).where(Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_not(None))
        assert (await tx.execute(gone)).scalars().all() == [3]
    await _promote(stage, 4, "thin", name)  # so the older one is free
    assert (await client.delete(f"/models/{name}/checkpoints/1")).status_code == 200


async def test_what_rollouts_that_run_ahead_are_sampled_from_is_not_deleted(stage: ModelStage) -> None:
    client, name = stage.service.client, await trained_model(stage.engine, "sampled", 4)
    run_id = await stage.run_of(name, best_step=4)
    figures: Json = {"best_step": 4, "reward_count": 0, "failed_rollouts": 0}
    figures |= {"skipped_groups": {}, "train_metrics": {}, "timing": {}}
    rows = [{"run_id": run_id, "iteration": step, "step": step, **figures} for step in range(5)]
    async with stage.service.database.begin() as tx:
        await tx.execute(insert(Iteration), rows)
        run = await tx.get_one(Run, run_id)
        run.status, run.next_iteration = RunStatus.PAUSED, 5
        run.request = {**run.request, "iterations": 9, "pipeline": {"max_staleness": 2}}
    for step in (2, 3):
        refused = await client.delete(f"/models/{name}/checkpoints/{step}")
        assert refused.status_code == 409
        assert f"is what rollouts of run {run_id} are sampled from" in refused.json()["detail"]
    assert (await client.delete(f"/models/{name}/checkpoints/1")).status_code == 200
    async with stage.service.database.begin() as tx:
        (await tx.get_one(Run, run_id)).status = RunStatus.CANCELLED
    assert (await client.delete(f"/models/{name}/checkpoints/2")).status_code == 200


async def test_to_another_tenant_nothing_of_it_exists(stage: ModelStage, api: Json) -> None:
    await _promote(stage, 1, "live")
    operations = [(method, path) for path, methods in api["paths"].items() for method in methods if "{project}" in path]
    assert len(operations) >= 5
    headers = dict(await stage.service.headers("sales", Scope))
    for method, template in operations:
        existing = "live" if template.startswith("/promotions") else "caller"
        bodies: Json = {"releases": {"step": 1}, "explore": {"share": 0.1}}
        body = bodies.get(template.rpartition("/")[2], {"step": 1, "as": "mine"})

        async def response_to(name: str) -> httpx.Response:
            filled = template.replace("{project}", "mail").replace("{name}", name)  # noqa: B023 - called at once
            path = re.sub(r"\{\w+\}", "0", filled)
            return await stage.service.client.request(method, path, headers=headers, json=body)  # noqa: B023

        foreign, absent = await response_to(existing), await response_to("nothing")
        assert foreign.status_code == absent.status_code == 404, (method, template)
        assert foreign.text.replace(f"mail/{existing}", "NAME") == absent.text.replace("mail/nothing", "NAME")
    for path in ("/models", "/promotions"):
        reply = await stage.service.client.get(path, headers=headers)
        assert reply.status_code == 200
        assert "mail" not in reply.text


async def test_commands(
    stage: ModelStage, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = await trained_model(stage.engine, "commanded", 2)
    monkeypatch.setenv("LEARNLOOP_API_KEY", await stage.key())
    monkeypatch.setenv("COLUMNS", "200")
    url = str(stage.service.client.base_url)

    async def command(*arguments: str) -> Any:
        return await asyncio.to_thread(learnloop, "models", *arguments, "--url", url)

    promoted = await command("promote", name, "--step", "1", "--as", "said")
    assert promoted.stdout == f"mail/said is now {name}@1\n", promoted.stderr
    assert (await command("promote", name, "--step", "2", "--as", "said", "--json")).json["step"] == 2
    assert [line.split()[1] for line in (await command("history", "mail/said")).stdout.splitlines()] == [
        f"{name}@2",
        f"{name}@1",
    ]
    assert name in (await command("list")).stdout
    description = (await command("show", name)).stdout
    assert "said" in description
    assert "1 of 1 groups" in description
    target = tmp_path / "model.tar"
    exported = await command("export", name, str(target), "--step", "1")
    assert exported.exit_code == 0, exported.stderr
    assert tarfile.is_tarfile(target)
    assert list(tmp_path.iterdir()) == [target]
    missing = await command("export", name, str(tmp_path / "none.tar"), "--step", "8")
    assert (missing.exit_code, (tmp_path / "none.tar").exists()) == (1, False)
    deleted = await command("delete", name, "--step", "1")
    assert deleted.stdout == f"{name}@1 is deleted; remaining steps: 0, 2\n", deleted.stderr
    assert (await command("delete", name, "--step", "2")).exit_code == 1
    assert (await command("show", "no-name")).exit_code == 1
