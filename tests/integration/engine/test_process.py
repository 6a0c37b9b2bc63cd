"""The engine as a process: start, stop, kill, and what a later one finds."""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.processes.engine import _pulse_of
from learnloop_service.training.engine.__main__ import main
from tests.fakes.engine_process import ROOT, EngineProcess
from tests.fakes.forked_engine import fork_server
from tests.integration.engine.training_client import asked_otherwise, create_model, sample, sampled_group, submit, train


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_ends_it_with_status_0(base: Path, tmp_path: Path, number: int) -> None:
    with EngineProcess(tmp_path, "--base-model", f"tiny={base}") as engine:
        ready = json.loads((tmp_path / "ready.json").read_text())
        assert ready["pid"] == engine.pid
        assert engine.stop(number) == 0
    lines = [json.loads(line) for line in engine.log().splitlines()]
    assert [line["event"] for line in lines] == ["engine listening", "engine stopped"]


async def test_what_was_committed_survives_a_kill(base: Path, tmp_path: Path) -> None:
    arguments = ("--base-model", f"tiny={base}")
    with EngineProcess(tmp_path, *arguments) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http:
            model = await create_model(http, "agent")
            group = await sampled_group(http, "agent")
            await train(http, model["id"], [group])
            trained = await sample(http, "agent@1", seed=1)
            (await submit(http, model["id"], asked_otherwise(group, 40))).raise_for_status()
            engine.stop(signal.SIGKILL)
    with EngineProcess(tmp_path, *arguments) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http:
            step = (await http.get(f"/preview/models/{model['id']}")).json()["step"]
            assert step in (1, 2)
            assert (await sample(http, "agent@1", seed=1))["logprobs"] == trained["logprobs"]
            assert (await train(http, model["id"], [group], expected_step=step))["step"] == step + 1
    names = {path.name for path in (tmp_path / "models" / "test" / "agent" / "checkpoints").iterdir()}
    assert names == {f"{number:06d}" for number in range(step + 2)}


async def test_an_engine_that_trains_is_not_taken_for_a_frozen_one(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever supervises it ends one that does not answer. Its event loop has time also while it computes."""
    monkeypatch.setattr("learnloop_service.app.processes.engine.Pulse", partial(Pulse, period_s=0.05))
    with EngineProcess(tmp_path, "--base-model", f"tiny={base}") as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=120) as http:
            model = await create_model(http, "agent")
            group = await sampled_group(http, "agent")
            training = asyncio.create_task(train(http, model["id"], asked_otherwise(group, 80)))
            answers, heard = 0, list[Mapping[str, Any]]()
            async for trouble in _pulse_of(engine.base_url.removesuffix("/v1"), heard.append).beats():
                assert trouble is None
                answers += 1
                if training.done():
                    break
            assert (await training)["step"] == 1
            assert answers > 1
        assert len(heard) == answers
        figures = heard[-1]["figures"]
        assert figures["sampled_tokens"] >= figures["decode_steps"] > 0
        assert figures["cache_capacity_tokens"] > 0


_DOORS = [
    *(
        ("GET", path)
        for path in ("/", "/nowhere", "/health/", "//health", "/health/x", "/v1/models", "/v1/models/tiny")
    ),
    *(
        ("GET", f"/v1/preview/{path}")
        for path in ("models", "models/m", "models/m/checkpoints", "training-jobs/j/events")
    ),
    *(("POST", f"/v1/{path}") for path in ("chat/completions", "preview/models", "preview/training-jobs")),
    ("POST", "/v1/preview/models/m/log"),
    ("DELETE", "/v1/preview/models/m"),
]


def _from_outside() -> set[str]:
    """Addresses of this machine at which a server on 127.0.0.1 must not be found."""
    addresses = {
        address.address
        for card in psutil.net_if_addrs().values()
        for address in card
        if address.family == socket.AF_INET
    }
    return {"127.0.0.2", *addresses} - {"127.0.0.1"}


async def test_only_who_has_the_key_gets_in(base: Path, tmp_path: Path) -> None:
    arguments = ("--base-model", f"tiny={base}", "--api-key-env", "ENGINE_KEY", "--max-body-mb", "1")
    with EngineProcess(tmp_path, *arguments, environment={"ENGINE_KEY": "canary-key"}) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "canary-key"}):
                refused = await http.get("/models", headers=headers)
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
                assert refused.json()["error"]["code"] == "invalid_api_key"
            for method, path in _DOORS:
                refused = await http.request(method, engine.base_url.removesuffix("/v1") + path, json={})
                assert refused.status_code == 401, path
                assert refused.json()["error"]["code"] == "invalid_api_key", path
            for address in _from_outside():
                with pytest.raises(httpx.ConnectError):
                    await http.get(engine.base_url.replace("127.0.0.1", address) + "/models")
            key = {"Authorization": "Bearer canary-key"}
            assert (await http.get("/models", headers=key)).status_code == 200
            health = (await http.get(engine.base_url.replace("/v1", "/health"))).json()
            assert health["status"] == "ok"
            assert health["busy_seconds"] == {"sampling": 0.0, "training": 0.0}
            assert health["training_weights"] == "exact"
            [device] = health["devices"]
            assert device["name"].startswith("CPU, ")
            assert 0 < device["memory_used_bytes"] < device["memory_total_bytes"]
            assert health["uptime_s"] > 0
            assert health["reproducible"] is None  # no model has been loaded and checked yet

            async def endless() -> "object":
                for _ in range(40):
                    yield b" " * 65536

            declared = await http.post("/chat/completions", content=b" " * (2 << 20), headers=key)
            chunked = await http.post("/chat/completions", content=endless(), headers=key)  # type: ignore[arg-type]
            assert [declared.status_code, chunked.status_code] == [413, 413]
            assert chunked.json()["error"]["code"] == "body_too_large"
    assert "canary-key" not in engine.log()


def test_it_ends_when_its_parent_does(base: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    flags = ["--data-dir", str(tmp_path), "--ready-file", str(ready), "--base-model", f"tiny={base}"]
    ours, theirs = fork_server().Pipe()
    parent = fork_server().Process(target=_parent_of_an_engine, args=(flags, ready, theirs))
    parent.start()
    theirs.close()
    engine = ours.recv()
    parent.join()
    assert ready.exists(), "it did not start"
    try:
        descriptor = os.pidfd_open(engine)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 60)[0], "it still runs"  # readable once the process is gone
    finally:
        os.close(descriptor)


def _parent_of_an_engine(flags: list[str], ready: Path, pipe: Connection) -> None:
    """Starts an engine, waits until it serves, sends its process id, and ends without a word to it."""
    parent = os.getpid()
    if (engine := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os._exit(main([*flags, "--die-with-parent", str(parent)]))
    while not ready.exists() and os.waitpid(engine, os.WNOHANG) == (0, 0):
        time.sleep(0.01)
    pipe.send(engine)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data-dir"], "expected one argument"),
        (["--data-dir", "x", "--port", "99999"], "0 to 65535"),
        (["--data-dir", "x", "--port", "x"], "--port"),
        (["--data-dir", "x", "--threads", "0"], "at least 1"),
        (["--data-dir", "x", "--workers", "2", "--samplers", "1"], "one or the other"),
        (["--data-dir", "x", "--workers", "2", "--trainers", "3"], "at most as many"),
        (["--data-dir", "x", "--device", "tpu"], "tpu"),
        (["--data-dir", "x", "--base-model", "tiny"], "NAME=DIR"),
        (["--data-dir", "x", "--base-model", "tiny=/nowhere"], "NAME=DIR"),
    ],
)
def test_bad_flags_are_named(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data-dir", "x", "--api-key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--data-dir", "x", "--sampler", "vllm", "--vllm-command", "/no/vllm"], "--vllm-command"),
        (["--data-dir", "x", "--host", "0.0.0.0"], "so it needs a key"),
        (["--data-dir", "x", "--training-weights", "fp8"], "--device cuda"),
        (["--data-dir", "x", "--training-weights", "fp8", "--device", "cuda", "--sampler", "vllm"], "own sampler"),
    ],
)
def test_what_cannot_be_served_so_is_refused(arguments: list[str], text: str) -> None:
    """The engine runs in a new process, because its log is set up by then."""
    process = subprocess.run(
        [sys.executable, "-m", "learnloop_service.training.engine", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 2
    assert text in process.stderr
    assert "Traceback" not in process.stderr
