"""Settings of the engine that the service starts reach it as flags."""

from argparse import Namespace
from pathlib import Path

from app.processes.engine import EngineProcess
from app.settings import Settings
from training.engine.flags import parser


def _flags(data_dir: Path, **settings: str) -> Namespace:
    chosen = Settings.model_validate({"data_dir": data_dir, "engine_sampler": "vllm", **settings})
    return parser("engine").parse_args(EngineProcess(chosen)._command[3:])


def test_vllm_as_the_sampler(tmp_path: Path) -> None:
    options = _flags(tmp_path, engine_vllm_command="/v/vllm", engine_vllm_args="--enforce-eager")
    assert (options.sampler, options.vllm_command, options.vllm_args) == ("vllm", "/v/vllm", ["--enforce-eager"])
    assert (options.vllm_gpus, options.vllm_url) == (None, None)
    options = _flags(tmp_path, engine_vllm_gpus="1,2", engine_vllm_url="http://vllm:8000")
    assert (options.vllm_gpus, options.vllm_url) == ("1,2", "http://vllm:8000/")


def test_training_in_8_bits(tmp_path: Path) -> None:
    assert _flags(tmp_path).training_weights == "exact"
    assert _flags(tmp_path, engine_training_weights="fp8").training_weights == "fp8"
