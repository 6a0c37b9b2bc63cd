"""Writes a Llama in Hugging Face layout as an unquantized GGUF file, as llama.cpp's converter does."""

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray
from safetensors.numpy import load_file

_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(source: Path, file: Path) -> Path:
    """Write the model and tokenizer in the directory `source`, a Llama, to `file`, and return it."""
    config = json.loads((source / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, source, config)
    for name, tensor in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith("q_proj"):
            tensor = _paired(tensor, heads)
        elif module.endswith("k_proj"):
            tensor = _paired(tensor, kv_heads)
        writer.add_tensor(f"{_gguf_name(module)}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_name(module: str) -> str:
    if module in _OUTSIDE:
        return _OUTSIDE[module]
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_BLOCK[part]}"


def _paired(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the channels: llama.cpp rotates neighbouring ones, Hugging Face those half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _add_tokenizer(writer: GGUFWriter, source: Path, config: dict[str, int]) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokens = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    added = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens |= added
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([tokens[number] for number in range(len(tokens))])
    writer.add_token_types(
        [TokenType.CONTROL if number in added else TokenType.NORMAL for number in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template((source / "chat_template.jinja").read_text())
