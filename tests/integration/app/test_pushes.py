"""Checkpoints pushed by the libraries' real clients to a hub and a store that are scripted, on a real engine."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from learnloop_service.app.db.tables import Checkpoint
from learnloop_service.app.model_registry.pushes.push import AT_ONCE
from learnloop_service.environment.json_type import Json
from tests.conditions import until
from tests.fakes.engine_process import EngineProcess
from tests.fakes.hub_server import HubServer, hub_server
from tests.fakes.s3_server import S3Server, s3_server
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage, engine_http, model_stage
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop
from tests.integration.engine.training_client import create_model, sampled_group, train

TO_HUB = {"to": "hf", "repo": "acme/mail-caller"}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


@pytest.fixture
def store() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def _settings(hub: HubServer, store: S3Server) -> dict[str, Any]:
    return {
        "hf_endpoint": hub.url,
        "hf_token": hub.token,
        "hf_repos": "mail=acme/mail-*,sales=acme/sales-*",
        "s3_endpoint": store.url,
        "s3_bucket": store.bucket,
        "s3_key_id": store.key_id,
        "s3_secret": store.secret,
        "s3_prefix": "trained",
    }


@asynccontextmanager
async def _stage(engine: EngineProcess, data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[ModelStage]:
    async with model_stage(engine, data_dir, database_url, **more) as stage:
        stage.service.client.headers.update(bearer(await stage.key()))
        yield stage


@pytest.fixture
async def pushing(
    model_engine: EngineProcess, data_dir: Path, database_url: str, hub: HubServer, store: S3Server
) -> AsyncIterator[ModelStage]:
    async with _stage(model_engine, data_dir, database_url, **_settings(hub, store)) as stage:
        yield stage


async def _push(stage: ModelStage, request: Mapping[str, Json], status: int = 200, model: str = CALLER) -> Json:
    reply = await stage.service.client.post(f"/models/{model}/push", json=request)
    assert reply.status_code == status, reply.text
    return reply.json()


def _whole(stage: ModelStage, step: int, model: str = CALLER) -> dict[str, bytes]:
    """The files that leave: all but the optimizer's."""
    directory = stage.engine.data_dir / "models" / model / "checkpoints" / f"{step:06d}"
    manifest = json.loads((directory / "manifest.json").read_text())
    return {name: (directory / name).read_bytes() for name in (*manifest["files"], "manifest.json")}


def _hanging(store: S3Server) -> threading.Event:
    """Let the store answer only once the event is set."""
    released = threading.Event()
    store.fault = lambda method, path: None if released.wait() else 500
    return released


async def test_to_a_repository(pushing: ModelStage, hub: HubServer) -> None:
    hub.refusals.append((503, "busy"))  # passes
    pushed = await _push(pushing, TO_HUB | {"step": 0})
    repo, whole = hub.repos["acme/mail-caller"], _whole(pushing, 0)
    assert (repo.private, repo.files, repo.commits) == (True, whole, [f"{CALLER}@0"])
    assert pushed == {
        "model": CALLER,
        "step": 0,
        "url": f"{hub.url}/acme/mail-caller",
        "revision": repo.head,
        "files": len(whole),
        "bytes": sum(map(len, whole.values())),
    }
    newest = await _push(pushing, TO_HUB)
    assert (newest["step"], newest["revision"]) == (1, repo.head)
    assert repo.files == _whole(pushing, 1)
    again = await _push(pushing, TO_HUB)  # there is nothing to commit
    assert (again, len(repo.commits)) == (newest, 2)


async def test_the_run_that_made_it_tells_of_it(pushing: ModelStage, store: S3Server) -> None:
    run_id = await pushing.run_of()
    async with pushing.service.database.begin() as tx:
        await tx.execute(insert(Checkpoint), [{"run_id": run_id, "step": 1, "iteration": 1, "is_best": False}])
    pushed = await _push(pushing, {"to": "s3"})
    page = (await pushing.service.client.get(f"/runs/{run_id}/events")).json()
    (event,) = page["items"]
    assert (event["type"], event["actor"][:7]) == ("checkpoint.pushed", "key:ll_")
    assert event["data"] == {"step": 1, "url": pushed["url"], "revision": None}
    # A stream of the run ends after it.
    stream = await pushing.service.client.get(f"/runs/{run_id}/events", headers={"accept": "text/event-stream"})
    assert "event: checkpoint.pushed" in stream.text


async def test_to_a_store(pushing: ModelStage, store: S3Server, data_dir: Path) -> None:
    faults = [503]  # passes
    store.fault = lambda method, path: faults.pop() if faults else None
    (data_dir / "pushes" / "0").mkdir(parents=True)
    (data_dir / "pushes" / "0" / "of a killed service").touch()
    pushed = await _push(pushing, {"to": "s3", "step": 0})
    folder, whole = f"trained/{CALLER}/0", _whole(pushing, 0)
    assert (pushed["url"], pushed["revision"]) == (f"s3://{store.bucket}/{folder}", None)
    assert store.objects == {f"{folder}/{name}": content for name, content in whole.items()}
    mark = f"{folder}/manifest.json"
    assert (store.puts[0], store.puts[-1]) == ((mark, 2), (mark, len(whole["manifest.json"])))

    await _push(pushing, {"to": "s3", "prefix": "live/now"})
    assert store.objects["trained/mail/live/now/config.json"] == _whole(pushing, 1)["config.json"]
    assert sorted(path.name for path in (data_dir / "pushes").iterdir()) == ["0.lock"]


async def test_what_is_not_allowed_is_not_pushed(pushing: ModelStage, hub: HubServer, store: S3Server) -> None:
    for request, status in (
        ({"to": "hf", "repo": "acme/sales-caller"}, 403),
        ({"to": "hf", "repo": "other/mail-caller"}, 403),
        ({"to": "hf", "repo": "acme/mail-x/y"}, 422),
        ({"to": "hf"}, 422),
        ({"to": "s3", "repo": "acme/mail-caller"}, 422),
        ({"to": "s3", "prefix": "../sales"}, 422),
        ({"to": "s3", "prefix": "/x"}, 422),
        ({"to": "s3", "endpoint": "http://127.0.0.1:1"}, 422),
        ({"to": "ftp"}, 422),
        (TO_HUB | {"step": 7}, 404),
    ):
        await _push(pushing, request, status)
    await _push(pushing, TO_HUB, 404, "mail/none")
    assert (hub.requests, store.puts) == ([], [])


async def test_the_far_side_is_quoted_without_secrets(
    pushing: ModelStage, hub: HubServer, store: S3Server, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.refusals.append((400, f"the token {hub.token} may not write here"))
    refused = await _push(pushing, TO_HUB, 502)
    assert refused["title"] == "Not pushed"
    assert "may not write here" in refused["detail"]
    hub.token = "hf_" + "u" * 34  # it was revoked
    assert "no such token" in (await _push(pushing, TO_HUB, 502))["detail"]
    store_secret, store.secret = store.secret, "another"
    wrong = (await _push(pushing, {"to": "s3"}, 502))["detail"]
    assert "SignatureDoesNotMatch" in wrong
    assert "Debug source" not in wrong
    output = f"{refused}{wrong}{''.join(capfd.readouterr())}"
    assert not [secret for secret in ("t" * 34, store_secret, store.key_id) if secret in output]
    assert (hub.repos, store.objects) == ({}, {})


async def test_a_torn_checkpoint_does_not_leave(pushing: ModelStage, store: S3Server) -> None:
    async with engine_http(pushing.engine) as http:
        model = await create_model(http, "torn-push", project="mail")
        group = await sampled_group(http, "mail/torn-push")
        await train(http, model["id"], [group])
    weights = pushing.engine.data_dir / "models/mail/torn-push/checkpoints/000001/model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    refused = await _push(pushing, {"to": "s3", "step": 1}, 409, "mail/torn-push")
    assert "differs from its manifest" in refused["detail"]
    assert store.puts == []


async def test_so_many_at_once(pushing: ModelStage, store: S3Server, data_dir: Path) -> None:
    released = _hanging(store)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(_push(pushing, {"to": "s3"}))
        await until(lambda: len(list((data_dir / "pushes").glob("?"))) == AT_ONCE)
        third = await pushing.service.client.post(f"/models/{CALLER}/push", json={"to": "s3"})
        assert (third.status_code, third.headers["retry-after"]) == (503, "30")
        released.set()


async def test_a_push_has_its_time(
    model_engine: EngineProcess, data_dir: Path, database_url: str, hub: HubServer, store: S3Server
) -> None:
    released = _hanging(store)
    settings = _settings(hub, store) | {"push_timeout_s": 1}
    async with _stage(model_engine, data_dir, database_url, **settings) as stage:
        assert "took longer than 1 s" in (await _push(stage, {"to": "s3"}, 502))["detail"]
    released.set()
    assert not list((data_dir / "pushes").glob("?"))


async def test_without_settings_it_says_which_ones(stage: ModelStage) -> None:
    stage.service.client.headers.update(bearer(await stage.key()))
    assert "HF_TOKEN, LEARNLOOP_HF_REPOS" in (await _push(stage, TO_HUB, 409))["detail"]
    missing = (await _push(stage, {"to": "s3"}, 409))["detail"]
    assert "LEARNLOOP_S3_BUCKET, LEARNLOOP_S3_KEY_ID, LEARNLOOP_S3_SECRET" in missing


async def test_command(
    pushing: ModelStage, hub: HubServer, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNLOOP_API_KEY", await pushing.key())
    url = str(pushing.service.client.base_url)

    async def command(*arguments: str) -> Any:
        return await asyncio.to_thread(learnloop, "models", "push", CALLER, *arguments, "--url", url)

    pushed = await command("--to", "hf", "--repo", "acme/mail-caller", "--step", "0")
    head = hub.repos["acme/mail-caller"].head
    assert pushed.stdout == f"{CALLER}@0 is now in {hub.url}/acme/mail-caller at {head}\n", pushed.stderr
    assert json.loads((await command("--to", "s3", "--prefix", "x", "--json")).stdout)["step"] == 1
    assert (await command("--to", "hf", "--repo", "acme/sales-caller")).exit_code == 1
