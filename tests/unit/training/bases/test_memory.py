"""What the engine needs for a base model, compared with the tensors that it really makes."""

import gc
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from learnloop_service.training.bases.memory import PROGRAM_BYTES, memory_needed, usual_tuning_of
from learnloop_service.training.engine import tiny_base
from learnloop_service.training.engine.trainer.policy import load_policy
from learnloop_service.training.engine.weights.weights import snapshot
from learnloop_service.training.tuning import Tuning

GB = 1e9
FULL, LORA = Tuning(), Tuning("lora")
HEAD = [151_936, 896]
QWEN: dict[str, list[int]] = {"model.embed_tokens.weight": HEAD, "layers": [357_898_112]}
"""Shapes of the size of Qwen2.5-0.5B: 494 million parameters, of which 136 million are the embedding."""


def _base(directory: Path, shapes: dict[str, list[int]], **config: Any) -> Path:
    """Headers of a model's files, without their content."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2", "tie_word_embeddings": True} | config))
    tensors = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps(tensors).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return directory


@pytest.mark.parametrize(
    ("device", "tuning", "training_gb", "sampling_gb"),
    [("cuda", FULL, 7.90, 1.26), ("cuda", LORA, 0.99, 0.0), ("cpu", FULL, 7.90, 10.08), ("cpu", LORA, 1.98, 10.08)],
)
def test_it_depends_on_the_tuning_and_the_device(
    tmp_path: Path, device: Any, tuning: Tuning, training_gb: float, sampling_gb: float
) -> None:
    need = memory_needed(_base(tmp_path / "base", QWEN), tuning, device)
    assert need.parameters == 494_032_768
    assert need.training / GB == pytest.approx(training_gb, abs=0.01)
    assert need.sampling / GB == pytest.approx(sampling_gb, abs=0.01)
    assert need.total == need.training + need.sampling + PROGRAM_BYTES


def test_a_tied_head_counts_once_and_another_one_twice(tmp_path: Path) -> None:
    with_head = QWEN | {"lm_head.weight": HEAD}
    repeated = memory_needed(_base(tmp_path / "repeated", with_head), FULL, "cuda")
    assert repeated == memory_needed(_base(tmp_path / "once", QWEN), FULL, "cuda")
    untied = memory_needed(_base(tmp_path / "own", with_head, tie_word_embeddings=False), FULL, "cuda")
    assert untied.parameters - repeated.parameters == 151_936 * 896
    assert untied.sampling == repeated.sampling  # a tied head is sampled from a separate copy


def test_in_8_bits_a_base_takes_one_byte_for_each_parameter_of_its_layers(tmp_path: Path) -> None:
    exact = memory_needed(_base(tmp_path / "exact", QWEN), LORA, "cuda")
    rounded = memory_needed(_base(tmp_path / "rounded", QWEN), LORA, "cuda", "fp8")
    assert exact.training - rounded.training == 494_032_768 - 151_936 * 896  # the embedding is not rounded
    other = _base(tmp_path / "other", QWEN, model_type="gpt_neox")
    assert memory_needed(other, LORA, "cuda", "fp8") == memory_needed(other, LORA, "cuda")


def test_a_base_of_another_shape_is_in_memory_twice_for_a_lora_on_a_gpu(tmp_path: Path) -> None:
    need = memory_needed(_base(tmp_path / "base", QWEN, model_type="gpt_neox"), LORA, "cuda")
    assert need.training == need.sampling == 2 * need.parameters


def test_files_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for ask in (lambda: memory_needed(tmp_path, FULL, "cpu"), lambda: usual_tuning_of(tmp_path)):
        with pytest.raises(ValueError, match="no readable safetensors weights"):
            ask()


def _tensor_bytes() -> int:
    gc.collect()
    tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def test_the_engine_makes_as_many_bytes_of_tensors() -> None:
    directory = Path(tiny_base.__file__).parent / "model"
    need, before = memory_needed(directory, FULL, "cpu"), _tensor_bytes()
    policy = load_policy(directory, lambda: directory, FULL, torch.device("cpu"))
    for parameter in policy.optimizer.parameters:
        parameter.grad = torch.ones_like(parameter)
    policy.optimizer.step(learning_rate=0.0, max_grad_norm=1.0)  # makes Adam's moments, and forgets the gradients
    gradients = need.training / 4
    trained = _tensor_bytes()
    assert trained - before == pytest.approx(need.training - gradients, rel=0.01)
    weights = snapshot(policy.model)
    assert _tensor_bytes() - trained == pytest.approx(need.sampling / 4, rel=0.01)
    del weights
