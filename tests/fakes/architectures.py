"""Tiny random models of today's architectures, with the tiny model's tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tests.fakes.tiny_model import tiny_tokenizer

_VOCAB = 320
_EXPERTS = {"num_experts_per_tok": 2}
_LINEAR = {
    "linear_conv_kernel_dim": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_TWO_KINDS = ["sliding_attention", "full_attention"]
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"], **_LINEAR},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, **_EXPERTS},
    "mixtral": {"num_local_experts": 4, **_EXPERTS},
    "gemma2": {"layer_types": _TWO_KINDS, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": {"layer_types": _TWO_KINDS, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "gemma4_text": {
        "layer_types": _TWO_KINDS,
        "sliding_window": 16,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": _VOCAB,
        "num_kv_shared_layers": 0,
    },
    "mistral": {"sliding_window": 16},
    "phi3": {"original_max_position_embeddings": 512},
    "olmo2": {},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": 16, "layer_types": _TWO_KINDS, **_EXPERTS},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_local_experts": 0, "mamba_n_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 4},
    "deepseek_v3": {"num_key_value_heads": 4, "first_k_dense_replace": 2, "head_dim": 8, **_LATENT},
}
"""Fields of each one's config besides its size, by model type."""


def make_architecture(directory: Path, model_type: str, **more: Any) -> Path:
    """Write a random model of two layers into the directory and return it. `more` are fields of its config. The same
    arguments give the same files."""
    tokenizer = tiny_tokenizer(_VOCAB)
    config = AutoConfig.for_model(
        model_type,
        **{
            "vocab_size": _VOCAB,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **ARCHITECTURES[model_type],
            **more,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1 and "conv" not in name:
                    parameter.mul_(4.0)  # a fresh model is almost uniform
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
