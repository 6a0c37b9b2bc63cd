"""Our forward passes against transformers' own, and their independence of batch, row, piece and span."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedModel

from learnloop_service.training.engine.weights.any_model import ModuleWeights, UnsupportedModel
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE, round_up
from learnloop_service.training.engine.weights.kv_cache import KVCache, Piece
from learnloop_service.training.engine.weights.llama_cpu import FusedWeights
from learnloop_service.training.engine.weights.weights import Weights, snapshot
from tests.fakes.tiny_model import make_tiny_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FUSED: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": 4}),
    ("qwen2", {"tie_word_embeddings": False}),
    ("llama", {}),
    ("llama", {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}}),
    ("mistral", {"num_key_value_heads": 1}),
]
GENERIC: list[tuple[str, dict[str, Any]]] = [
    ("gpt_neox", {}),
    ("mistral", {"sliding_window": 9}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
]


def load(directory: Path, family: str, overrides: dict[str, Any] | None = None) -> PreTrainedModel:
    path = make_tiny_model(directory / family, family, overrides=overrides)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path)  # which gives it in evaluation mode
    return model


def tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 320, (count,), generator=torch.Generator().manual_seed(seed))


def last_logits(
    weights: Weights,
    ids: torch.Tensor,
    *,
    prefilled: int,
    piece: int = 1 << 30,
    row: int = 0,
    rows: int = 8,
    spare: int = 0,
) -> torch.Tensor:
    """Logits after the last token: the first are prefilled in pieces, the rest decoded, among other rows of noise."""
    cache = KVCache(weights.kv, rows, round_up(len(ids) + 1 + spare, KEY_MULTIPLE))
    for keys, values in cache.layers:
        keys.normal_(generator=torch.Generator().manual_seed(7))
        values.normal_(generator=torch.Generator().manual_seed(8))
    for start in range(0, prefilled, piece):
        weights.prefill(cache, [Piece(row, start, ids[start : min(start + piece, prefilled)].numpy())])
    logits = torch.empty(0)
    for position in range(prefilled, len(ids)):
        feed = tokens(rows, seed=position)
        places = torch.arange(rows) % cache.length
        feed[row], places[row] = ids[position], position
        logits = weights.decode(cache, feed, places, round_up(position + 1 + spare, KEY_MULTIPLE))[row]
    return logits


@pytest.mark.parametrize(("family", "overrides"), FUSED + GENERIC)
def test_logprobs_equal_those_of_transformers(tmp_path: Path, family: str, overrides: dict[str, Any]) -> None:
    model = load(tmp_path, family, overrides)
    weights = snapshot(model)
    assert isinstance(weights, FusedWeights if (family, overrides) in FUSED else ModuleWeights)
    ids = tokens(75)
    with torch.no_grad():
        expected = model(ids[None]).logits[0, -1].log_softmax(-1)
    for prefilled in (0, 40, 74):
        actual = last_logits(weights, ids, prefilled=prefilled).log_softmax(-1)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gpt_neox"])
def test_same_bits_in_any_batch_row_piece_and_span(tmp_path: Path, family: str) -> None:
    weights = snapshot(load(tmp_path, family))
    ids = tokens(420)  # long enough that a product with the values would be cut into blocks
    expected = last_logits(weights, ids, prefilled=419)
    assert torch.equal(last_logits(weights, ids, prefilled=419, piece=100), expected)
    assert torch.equal(last_logits(weights, ids, prefilled=419, piece=419 - 3), expected)
    assert torch.equal(last_logits(weights, ids, prefilled=380, row=21, rows=32, spare=200), expected)
    assert torch.equal(last_logits(weights, ids, prefilled=180, row=2, rows=4), expected)


def test_the_whole_context_can_be_used(tmp_path: Path) -> None:
    for family in ("qwen3", "gpt_neox"):
        model = load(tmp_path, family, {"max_position_embeddings": 40})
        ids = tokens(40)
        with torch.no_grad():
            expected = model(ids[None]).logits[0, -1].log_softmax(-1)
        actual = last_logits(snapshot(model), ids, prefilled=39).log_softmax(-1)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "gpt_neox"])
def test_training_does_not_change_a_snapshot(tmp_path: Path, family: str) -> None:
    model = load(tmp_path, family)
    weights, ids = snapshot(model), tokens(20)
    before = last_logits(weights, ids, prefilled=10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert torch.equal(last_logits(weights, ids, prefilled=10), before)
    assert not torch.equal(last_logits(snapshot(model), ids, prefilled=10), before)


@pytest.mark.parametrize(("family", "targets"), [("qwen3", ["q_proj", "up_proj"]), ("gpt_neox", ["query_key_value"])])
def test_an_adapter_is_merged_into_the_copy_only(tmp_path: Path, family: str, targets: list[str]) -> None:
    model = get_peft_model(load(tmp_path, family), LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    model.eval()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    ids = tokens(30)
    with torch.no_grad():
        expected = model(ids[None]).logits[0, -1].log_softmax(-1)
    torch.testing.assert_close(
        last_logits(snapshot(model), ids, prefilled=15).log_softmax(-1), expected, atol=1e-5, rtol=0
    )
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    model = load(tmp_path, "qwen3")
    ids = tokens(40)
    exact = last_logits(snapshot(model), ids, prefilled=20).log_softmax(-1)
    rough = last_logits(snapshot(model, dtype=torch.bfloat16), ids, prefilled=20).log_softmax(-1)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, atol=0.3, rtol=0)


def test_a_model_without_keys_and_values_is_refused() -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, state_size=4))
    with pytest.raises(UnsupportedModel):
        snapshot(model)


def test_rows_are_copied_swapped_and_kept_when_the_cache_grows(tmp_path: Path) -> None:
    weights = snapshot(load(tmp_path, "qwen3"))
    first, second = tokens(20, seed=1), tokens(30, seed=2)
    cache = KVCache(weights.kv, 8, 48)
    weights.prefill(cache, [Piece(0, 0, first.numpy()), Piece(5, 0, second.numpy())])

    def row(cache: KVCache, row: int, length: int) -> list[torch.Tensor]:
        return [
            part.clone()
            for keys, values in cache.layers
            for part in (keys[row, :, :, :length].transpose(1, 2), values[row, :, :length])
        ]

    one, other = row(cache, 0, 20), row(cache, 5, 30)
    cache.swap(0, 5, 30)
    cache.copy(0, 3, 30)
    grown = cache.resized(16, 96, [(5, 20), (3, 30)])
    assert all(map(torch.equal, row(grown, 0, 20), one))
    assert all(map(torch.equal, row(grown, 1, 30), other))
    assert all(bool((part == 0).all()) for part in row(grown, 2, 96))
