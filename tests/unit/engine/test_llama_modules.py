"""Llama-shaped models are read, trained and saved without transformers as with it, to the bit."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.policy import Policy, load_policy
from learnloop_service.training.engine.trainer.pretrained import load_model
from learnloop_service.training.engine.weights import llama_modules
from learnloop_service.training.tuning import Tuning
from tests.fakes.tiny_model import make_tiny_model

CPU = torch.device("cpu")
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False, "attention_bias": True}),
    ("qwen2", {}),
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("mistral", {"head_dim": 12}),
]


@pytest.mark.parametrize(("family", "overrides"), SHAPES, ids=str)
def test_a_model_is_read_as_transformers_reads_it(tmp_path: Path, family: str, overrides: dict[str, Any]) -> None:
    directory = make_tiny_model(tmp_path / "model", family, overrides=overrides)
    assert llama_modules.is_readable(directory)
    ours, theirs = llama_modules.read(directory), load_model(directory, CPU, torch.float32)
    assert ours is not None
    assert facts(ours) == facts(theirs)
    for (name, one), (other_name, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)
        assert one.requires_grad
    rotary: Any = theirs.model.rotary_emb
    assert torch.equal(ours.model.rotary_emb.inv_freq, rotary.inv_freq)
    hidden = torch.randn(5, 32)
    assert torch.equal(ours.model.norm(hidden), theirs.model.norm(hidden))


def facts(model: Any) -> list[Any]:
    """What the forward passes ask of a model besides its parameters."""
    attention, config = model.model.layers[0].self_attn, model.config
    names = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "max_position_embeddings")
    return [
        *(getattr(config, name) for name in (*names, "rms_norm_eps", "hidden_act")),
        *(attention.head_dim, attention.scaling, hasattr(attention, "q_norm")),
        *(model.model.rotary_emb.attention_scaling, model.num_parameters(), model.dtype, model.device),
        model.lm_head.weight is model.model.embed_tokens.weight,
    ]


@pytest.mark.parametrize(("family", "overrides"), SHAPES, ids=str)
def test_a_trained_model_is_saved_in_the_files_of_transformers(
    tmp_path: Path, family: str, overrides: dict[str, Any]
) -> None:
    directory = make_tiny_model(tmp_path / "model", family, overrides=overrides)
    ours = load_policy(directory, lambda: directory, Tuning(), CPU)
    theirs = Policy(load_model(directory, CPU, torch.float32), Tuning(), lambda: directory)
    assert isinstance(ours.model, llama_modules.LlamaModel)
    for name, policy in (("ours", ours), ("theirs", theirs)):
        ids = [[1, 5, 9, 300, 7, 2], [1, 5, 9, 11]]
        for batch in packed_batches(ids, [[3, 5], [2]], 100, CPU):
            batch.logprobs(policy.model)[0].sum().backward()  # type: ignore[no-untyped-call]
        policy.optimizer.step(learning_rate=1e-2, max_grad_norm=1.0)
        (tmp_path / name).mkdir()
        policy.save(tmp_path / name)
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")
    again = llama_modules.read(tmp_path / "ours")
    assert again is not None
    assert all(map(torch.equal, again.parameters(), ours.model.parameters()))
    assert not torch.equal(again.lm_head.weight, load_model(directory, CPU, torch.float32).lm_head.weight)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        change(config)
        (directory / "config.json").write_text(json.dumps(config))

    return spoil


def _tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return spoil


def _cut_off(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


FOREIGN: dict[str, Callable[[Path], object]] = {
    "another family": _config(lambda config: config.update(architectures=["PhiForCausalLM"])),
    "another activation": _config(lambda config: config.update(hidden_act="gelu")),
    "another rotary embedding": _config(
        lambda config: config["rope_parameters"].update(rope_type="linear", factor=2.0)
    ),
    "a part of it": _config(lambda config: config["rope_parameters"].update(partial_rotary_factor=0.5)),
    "the words of transformers 4": _config(lambda config: config.update(torch_dtype=config.pop("dtype"))),
    "a sliding window": _config(lambda config: config.update(layer_types=["sliding_attention", "full_attention"])),
    "quantised": _config(lambda config: config.update(quantization_config={})),
    "code of its own": _config(lambda config: config.update(auto_map={})),
    "another shape": _config(lambda config: config.update(hidden_size=16)),
    "no sizes": _config(lambda config: config.pop("num_key_value_heads")),
    "no object": lambda directory: (directory / "config.json").write_text("[]"),
    "a tensor too many": _tensors(lambda tensors: tensors.update(other=torch.zeros(1))),
    "a tensor too few": _tensors(lambda tensors: tensors.pop("model.norm.weight")),
    "cut off": _cut_off,
    "no weights": lambda directory: (directory / "model.safetensors").unlink(),
    "no generation config": lambda directory: (directory / "generation_config.json").unlink(),
}


@pytest.mark.parametrize("spoil", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_is_not_such_a_model_is_left_to_transformers(
    tmp_path: Path, spoil: Callable[[Path], object], whole: Path
) -> None:
    directory = Path(shutil.copytree(whole, tmp_path / "model"))
    assert llama_modules.is_readable(directory)
    spoil(directory)
    assert not llama_modules.is_readable(directory)
    assert llama_modules.read(directory) is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("whole") / "model")


def test_the_engine_works_with_the_tiny_base_without_transformers() -> None:
    process = subprocess.run([sys.executable, "-c", _ENGINE], capture_output=True, text=True, timeout=100, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


_ENGINE = """
import sys, tempfile
from pathlib import Path
import learnloop_service.training.engine.http.server
from learnloop_service.training.engine.__main__ import TINY_BASE
from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.sft import Example, SftOptions

with tempfile.TemporaryDirectory() as directory:
    engine = Engine(Registry(Path(directory), {"tiny": TINY_BASE}), Sampler())
    model = engine.registry.create(project="p", name="n", base_model="tiny")
    messages = ({"role": "user", "content": "When?"}, {"role": "assistant", "content": "Now"})
    assert finish(engine.train_supervised(model.id, [Example(messages)], SftOptions())).step == 1
    target = engine.registry.resolve("p/n")
    prompt = engine.tokenizer(target).prompt(messages[:1], None)
    assert engine.sample(target, [SampleRequest(tuple(prompt), target.key, max_tokens=2)])
    engine.check(model.id)
print([name for name in ("transformers", "peft", "accelerate", "sympy", "torch._dynamo") if name in sys.modules])
"""
