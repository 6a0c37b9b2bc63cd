"""Flags of the engine that the service starts: its own, and those of LEARNLOOP_ENGINE_ARGS."""

from argparse import Namespace
from pathlib import Path

import pytest

from learnloop_service.app.processes.engine import EngineProcess
from learnloop_service.app.settings import Settings
from learnloop_service.training.engine_flags import parse


def _flags(data_dir: Path, engine_args: str) -> Namespace:
    settings = Settings.model_validate({"data_dir": data_dir, "engine_args": engine_args})
    return parse(EngineProcess(settings)._command[3:], "engine")


def test_the_engine_gets_the_flags_as_a_shell_would_split_them(tmp_path: Path) -> None:
    options = _flags(tmp_path, "--sampler vllm --vllm-gpus 1,2 --vllm-args='--enforce-eager --quantization fp8'")
    assert options.sampler == "vllm"
    assert options.vllm_gpus == "1,2"
    assert options.vllm_args == ["--enforce-eager", "--quantization", "fp8"]
    assert options.data_dir == tmp_path


def test_they_win_over_the_defaults_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.engine.usable_cores", lambda: 8)
    assert _flags(tmp_path, "").train_threads == 2
    assert _flags(tmp_path, "--train-threads 4").train_threads == 4


def test_the_size_of_the_cache_is_a_setting(tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path, "engine_cache_mb": 2048})
    assert parse(EngineProcess(settings)._command[3:], "engine").cache_mb == 2048
    both = settings.model_copy(update={"engine_args": ("--cache-mb", "64")})
    assert parse(EngineProcess(both)._command[3:], "engine").cache_mb == 64
    assert _flags(tmp_path, "").cache_mb is None


def test_a_gpu_decodes_all_rollouts_of_an_iteration_together(tmp_path: Path) -> None:
    assert _flags(tmp_path, "").slots == 64
    assert _flags(tmp_path, "--device cuda").slots == 256
    assert _flags(tmp_path, "--device cuda --slots 32").slots == 32


def test_the_service_knows_the_device(tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path}
    assert Settings.model_validate(settings).engine_device == "cpu"
    assert Settings.model_validate({**settings, "engine_args": "--device cuda"}).engine_device == "cuda"


def test_an_engine_alone_has_another_data_directory() -> None:
    """The service's engine may be running in the service's directory."""
    data_dir = parse([], "engine").data_dir
    assert data_dir == Path(".learnloop-engine")
    assert data_dir != Settings.model_fields["data_dir"].default
