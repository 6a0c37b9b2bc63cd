"""docs/backends.md alone is enough to write a backend: its code is installed, and a run is trained on it."""

import json
import re
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from learnloop_service.app.backends import Backends, choices, refusal
from learnloop_service.app.cli.main import app
from learnloop_service.app.cli.new import BACKEND, rendered
from learnloop_service.app.settings import SettingsError, load_settings
from learnloop_service.app.tracing.redaction import secrets_of
from learnloop_service.training.backends.base import Backend, BackendUnavailable
from learnloop_service.training.backends.registry import GROUP, listed_settings, preflight
from learnloop_service.training.backends.traits import State
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.engine_process import ROOT
from tests.fakes.installed import installed
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import run_with, served, settings_for

PAGE = (ROOT / "docs/backends.md").read_text(encoding="utf-8")
[CODE] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
REQUEST = {
    "backend": "lab",
    "model": {"base_model": "ours-7b", "name": "agent"},
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 4,
    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The document's package is installed, with the document's entry point."""
    monkeypatch.delenv("LAB_URL", raising=False)
    site = tmp_path / "site"
    (site / "lab").mkdir(parents=True)
    (site / "lab/__init__.py").touch()
    (site / "lab/backend.py").write_text(CODE, encoding="utf-8")
    lines = next(
        section for section in re.findall(r"^    (\[project\.entry-points.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    )
    with installed(site, GROUP, tomllib.loads(lines.replace("\n    ", "\n"))["project"]["entry-points"][GROUP]):
        yield site / "lab/backend.py"


class Trainer:
    """The trainer at LAB_URL. A training takes effect at once."""

    def __init__(self, sampled_at: str) -> None:
        self.step, self.requests, self.base_models = 0, list[Mapping[str, Any]](), list[str]()
        self._sampled_at = sampled_at
        self.app = web.Application(client_max_size=1 << 28)
        self.app.add_routes(
            [
                web.put("/models/{project}/{name}", self._register),
                web.get("/models/{project}/{name}", self._get),
                web.post("/models/{project}/{name}/steps", self._train),
                web.get("/jobs/{job}", self._job),
            ]
        )

    async def _register(self, request: web.Request) -> web.Response:
        self.base_models.append((await request.json())["base_model"])
        return web.json_response({"sampled_at": self._sampled_at})

    async def _get(self, _: web.Request) -> web.Response:
        return web.json_response({"step": self.step})

    async def _train(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["from_step"] != self.step:
            return web.json_response({"error": f"the model is at step {self.step}"}, status=409)
        self.step += 1
        self.requests.append(body)
        return web.json_response({"job": f"job-{self.step}"})

    async def _job(self, request: web.Request) -> web.Response:
        return web.json_response({"state": "done", "metrics": {"loss": 0.25}})


async def answer(request: Mapping[str, Any]) -> Reply:
    """Search once, then give up, or in half of the rollouts answer wrongly."""
    if len(request["messages"]) <= 2:
        return call("search_inbox", keywords=["budget"])
    wrong = {"answer": "Tuesday", "sources": []} if request["seed"] % 2 else {"answer": "I don't know", "sources": []}
    return call("return_final_answer", **wrong)


@pytest.fixture
async def trainer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trainer]:
    async with scripted_chat(answer) as chat:
        trainer = Trainer(chat.url)
        async with TestServer(trainer.app) as server:
            monkeypatch.setenv("LAB_URL", str(server.make_url("")))
            yield trainer


@pytest.mark.usefixtures("lab")
async def test_a_run_is_trained_on_it(trainer: Trainer, data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)

    class Connected(ScriptedBackend):
        async def connect(self, name: str) -> Backend:
            return await Backends(settings, None).connect(name)  # type: ignore[arg-type]

    async with served(settings, learn_loop, Connected()) as client:  # type: ignore[arg-type]
        [listed] = [backend for backend in (await client.get("/backends")).json()["items"] if backend["name"] == "lab"]
        assert (listed["available"], listed["reason"]) == (True, None)
        body = REQUEST | {"train_options": {"epsilon": 0.2}}
        posted = (await client.post("/learn-loop", json=body)).raise_for_status().json()
        run = await run_with(client, posted["run_id"], "completed", "failed")
        assert (run["status"], run["backend"], run["error"]) == ("completed", "lab", None)
        assert (trainer.step, trainer.base_models[0]) == (2, "ours-7b")
        assert [
            (training_request["from_step"], training_request["epsilon"]) for training_request in trainer.requests
        ] == [(0, 0.2), (1, 0.2)]
        [first, *_] = trainer.requests[0]["groups"][0]["trajectories"]
        assert first["messages_and_choices"]


@pytest.mark.usefixtures("lab", "trainer")
@pytest.mark.parametrize(
    ("asked", "place", "said"),
    [
        (
            {"train_options": {"max_kl": 0.1}},
            ["train_options", "max_kl"],
            "lab does not take max_kl. Available: epsilon.",
        ),
        ({"warm_start": {"demonstrations": {"oracle": 2}}}, ["warm_start"], "lab does not train on demonstrations"),
        ({"model": {"base_model": "a", "tuning": {"mode": "lora"}}}, ["model", "tuning"], "lab decides itself"),
        ({"model": {"base_model": "a", "enable_thinking": True}}, ["model", "enable_thinking"], "does not take"),
        ({"model": {"base_model": "learnloop/tiny"}}, ["backend"], "does not have the base model learnloop/tiny"),
    ],
)
async def test_what_it_does_not_take_is_refused(
    asked: dict[str, Any], place: list[str], said: str, data_dir: Path, database_url: str
) -> None:
    async with served(settings_for(data_dir, database_url), learn_loop) as client:  # type: ignore[arg-type]
        reply = await client.post("/learn-loop", json=REQUEST | asked)
        assert reply.status_code == 422
        [error] = reply.json()["errors"]
        assert (error["loc"], said in error["msg"]) == (["body", *place], True), error


@pytest.mark.usefixtures("lab")
async def test_what_it_lacks_is_said(data_dir: Path) -> None:
    settings = load_settings(data_dir=data_dir, backend="lab")
    reason = "The backend lab is not available here: set LAB_URL to the trainer's address."
    assert [choice.refusal for choice in choices() if choice.name == "lab"] == [reason]
    with pytest.raises(BackendUnavailable, match="set LAB_URL"):
        await Backends(settings, None).connect("lab")  # type: ignore[arg-type]


async def test_nobody_at_the_address_is_an_outage(lab: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_URL", "http://127.0.0.1:9")
    backend = await Backends(load_settings(data_dir=data_dir), None).connect("lab")  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        await backend.checkpoints("p", "m") or await backend.ask("GET", "/models/p/m")  # type: ignore[attr-defined]
    await backend.close()


@pytest.mark.usefixtures("lab", "trainer")
def test_its_settings_are_listed_and_its_trainer_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    [setting] = listed_settings("lab")
    assert (setting.variable, setting.is_set) == ("LAB_URL", True)
    assert setting.description == "The trainer's address, such as http://127.0.0.1:9000."
    monkeypatch.setenv("LAB_URL", "http://127.0.0.1:9")
    [check] = preflight("lab")
    assert (check.state, check.remedy) == (State.FAILED, "start the trainer, or correct LAB_URL")
    checked = CliRunner().invoke(app, ["check", "backend", "lab", "--json"])
    assert checked.exit_code == 1
    assert [outcome["state"] for outcome in json.loads(checked.stdout)["checks"]] == ["ok", "failed"]


@pytest.mark.usefixtures("lab")
def test_a_wrong_setting_of_it_stops_the_service(data_dir: Path, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write_text(CODE.replace("lab_url: str | None = None", "lab_url: int = 0"), encoding="utf-8")
    monkeypatch.setenv("LAB_URL", "http://127.0.0.1:9")
    with pytest.raises(SettingsError, match="LAB_URL: Input should be a valid integer"):
        load_settings(data_dir=data_dir)
    assert "bad settings: LAB_URL" in (refusal("lab") or "")


@pytest.mark.usefixtures("lab")
def test_its_secrets_are_hidden(data_dir: Path, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = CODE.replace("import httpx\n", "import httpx\nfrom pydantic import SecretStr\n")
    lab.write_text(code.replace("lab_url: str | None", "lab_key: SecretStr | None = None\n    lab_url: str | None"))
    monkeypatch.setenv("LAB_KEY", "canary-of-the-lab")
    assert "canary-of-the-lab" in secrets_of(load_settings(data_dir=data_dir))


async def test_none_replaces_one_of_ours(tmp_path: Path) -> None:
    with installed(tmp_path, GROUP, {"embedded": "nowhere:connect"}):
        assert refusal("embedded") is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere", "The backend 'lab' cannot be loaded from lab.backend:connect: ModuleNotFoundError"),
        ("def connect(): ...\nTRAITS = {}", "TRAITS of lab.backend is {}, not a BackendTraits"),
        (
            CODE.replace("return None if settings.lab_url else", "return 1 / 0 or"),
            "its `refusal` raised ZeroDivisionError: division by zero",
        ),
    ],
)
def test_a_fault_of_the_package_is_the_reason(
    code: str, said: str, lab: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_URL", "http://127.0.0.1:9")
    lab.write_text(code, encoding="utf-8")
    load_settings(data_dir=data_dir)
    assert said in (refusal("lab") or "")
    assert [choice.name for choice in choices()] == ["embedded", "lab", "local", "serverless"]


async def test_what_connecting_raises_is_an_outage(lab: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_URL", "http://127.0.0.1:9")
    lab.write_text(CODE.replace("timeout=60", "timeout={}['no']"), encoding="utf-8")
    with pytest.raises(BackendUnavailable, match="The backend 'lab' cannot be connected: KeyError: 'no'"):
        await Backends(load_settings(data_dir=data_dir), None).connect("lab")  # type: ignore[arg-type]


def test_it_is_what_the_command_writes() -> None:
    assert rendered(BACKEND, "lab")["lab/backend.py"] == CODE


def test_a_default_that_nobody_installed_is_refused(data_dir: Path) -> None:
    with pytest.raises(SettingsError, match="no backend 'lab'; expected one of embedded, local, serverless"):
        load_settings(data_dir=data_dir, backend="lab")
