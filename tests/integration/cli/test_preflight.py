"""`learnloop preflight` says what is missing before a run is started, and tries one iteration in small."""

import asyncio
import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from tests.integration.app.sales_runs import SALES, sales_service
from tests.integration.cli.conftest import Learnloop, Ran


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # no .env of a developer
    for name in ("DATABASE_URL", "OPENAI_API_KEY", "LEARNLOOP_JUDGE_MODEL", "LEARNLOOP_BACKEND", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


_NO_MODEL = "LEARNLOOP_JUDGE_MODEL"


def _state(ran: Ran) -> dict[str, str]:
    return {check["name"]: check["state"] for check in ran.json}


def _finding(ran: Ran, name: str) -> str:
    return next(f"{check['found']} {check['remedy']}" for check in ran.json if check["name"] == name)


def _base_model(directory: Path, parameters: int) -> Path:
    """Files of a model of that size, without its content."""
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text('{"model": {}}')
    header = json.dumps({"w": {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * parameters)
    return directory


def test_a_laptop_has_all_that_the_demo_needs(learnloop: Learnloop, tmp_path: Path) -> None:
    ran = learnloop("preflight", "--no-trial", "--data-dir", str(tmp_path / "new"), "--json")
    assert (ran.exit_code, set(_state(ran).values())) == (0, {"ok"}), ran.stdout
    assert {"machine", "backend", "base model", "disk", "database", "judge"} == _state(ran).keys()
    assert not (tmp_path / "new").exists()  # it only looked


def test_a_run_that_does_not_fit_on_the_disk_is_named_with_the_number(
    learnloop: Learnloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _base_model(tmp_path / "half", 500_000_000)
    monkeypatch.setenv("LEARNLOOP_ENGINE_BASE_MODELS", f"half={base}")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
    whole = ("preflight", "--no-trial", "--data-dir", str(tmp_path / "new"), "--json", "--set", "model.base_model=half")
    for free, checkpoint_options, state in (
        (60e9, (), "ok"),
        (60e9, ("--set", "checkpoints.keep_last=100"), "failed"),
        (20e9, (), "failed"),
    ):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=int(free)))
        ran = learnloop(*whole, *checkpoint_options)
        assert _state(ran)["disk"] == state, ran.stdout
        assert f"{free / 1e9:.1f} GB free" in _finding(ran, "disk")
        count = 47 if checkpoint_options else 11
        assert f"{count} checkpoints of 2.00 GB and 12.00 GB of optimizer state" in _finding(ran, "disk")


@pytest.mark.parametrize(
    ("environment", "settings", "name", "said"),
    [
        ({}, "judge.name=ruler", "judge", "LEARNLOOP_JUDGE_MODEL"),
        ({}, 'environment={"name": "mcp", "config": {"server": {"url": "https://x.example/"}}}', "judge", _NO_MODEL),
        (
            {},
            'environment={"name": "agent", "config": {"scenarios": "mail", "runner": {"pull": {}}}}',
            "judge",
            _NO_MODEL,
        ),
        ({}, "judge.name=nobody", "judge", "Unknown judge 'nobody'"),
        ({}, "judge=[{name: reference, weight: 1}, {name: ruler, weight: 1}]", "judge", "LEARNLOOP_JUDGE_MODEL"),
        ({}, "backend=serverless", "backend", "WANDB_API_KEY"),
        ({}, "model.base_model=acme/7b", "base model", "learnloop bases add"),
        ({"DATABASE_URL": "postgresql://127.0.0.1:9/none"}, "seed=1", "database", "start it, or correct the address"),
    ],
)
def test_what_is_missing_is_named_with_what_helps(
    learnloop: Learnloop,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    settings: str,
    name: str,
    said: str,
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    ran = learnloop("preflight", "--no-trial", "--set", settings, "--json")
    assert (ran.exit_code, _state(ran)[name]) == (1, "failed")
    assert said in _finding(ran, name)


@pytest.mark.parametrize(
    ("billions", "state", "trained"),
    [(0.01, "ok", "all weights"), (0.99, "failed", "all weights"), (300, "failed", "a LoRA")],
)
def test_the_base_model_is_compared_with_the_memory(
    learnloop: Learnloop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    billions: float,
    state: str,
    trained: str,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=12e9))
    base = _base_model(tmp_path / "base", int(billions * 1e9))
    monkeypatch.setenv("LEARNLOOP_ENGINE_BASE_MODELS", f"mine={base}")
    ran = learnloop("preflight", "--no-trial", "--set", "model.base_model=mine", "--json")
    assert _state(ran)["memory"] == state, ran.stdout
    assert trained in _finding(ran, "base model")
    assert ("model.tuning.mode=lora" in _finding(ran, "memory")) is (state == "failed" and trained == "all weights")
    (base / "tokenizer.json").unlink()
    broken = learnloop("preflight", "--no-trial", "--set", "model.base_model=mine", "--json")
    assert "tokenizer" in _finding(broken, "base model")


def test_a_lora_that_the_run_asks_for_needs_less_memory(
    learnloop: Learnloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _base_model(tmp_path / "base", 100_000_000)
    monkeypatch.setenv("LEARNLOOP_ENGINE_BASE_MODELS", f"mine={base}")
    arguments = ("preflight", "--no-trial", "--set", "model.base_model=mine", "--json")
    whole, lora = learnloop(*arguments), learnloop(*arguments, "--set", "model.tuning.mode=lora")
    assert "about 4.7 GB needed (1.6 to train, 1.6 to sample, 1.5 for the rest)" in _finding(whole, "memory")
    assert "a LoRA trained" in _finding(lora, "base model")
    assert "about 3.5 GB needed (0.4 to train, 1.6 to sample, 1.5 for the rest)" in _finding(lora, "memory")


def test_a_bad_request_is_refused_with_all_its_faults(learnloop: Learnloop) -> None:
    ran = learnloop("preflight", "--set", "iterations=0", "--set", "colour=red")
    assert ran.exit_code == 2
    assert "iterations" in ran.stderr
    assert "colour" in ran.stderr
    unreadable = learnloop("preflight", "--set", 'environment.config={"inbox": "a\\u0000"}')
    assert unreadable.exit_code == 2
    assert "Value error" not in unreadable.stderr  # what a library calls it


async def _tried(url: str, body: dict[str, Any], directory: Path) -> Ran:
    file = directory / "run.yaml"
    file.write_text(json.dumps(body))
    arguments = ["preflight", str(file), "--url", url, "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    # The service's log is in between: here it is in this process.
    return Ran(result.exit_code, result.stdout[result.stdout.index("[\n") :], result.stderr)


async def test_the_trial_is_a_real_iteration_and_leaves_nothing(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    async with sales_service(data_dir, database_url) as client:
        ran = await _tried(str(client.base_url), SALES | {"iterations": 50}, tmp_path)
        assert ran.exit_code == 0, ran.stdout + ran.stderr
        state = _state(ran)
        assert state.keys() == {"rollouts", "training", "judging", "expected time"}
        assert "8 rollouts, 0 failed" in _finding(ran, "rollouts")
        assert "for 718 rollouts" in _finding(ran, "expected time")
        assert (await client.get("/runs")).json()["items"] == []
        assert "demonstrations" not in _finding(ran, "expected time")
        refused = await _tried(str(client.base_url), SALES | {"judge": {"name": "nobody"}}, tmp_path)
        assert (refused.exit_code, _state(refused)) == (1, {"trial": "failed"})
