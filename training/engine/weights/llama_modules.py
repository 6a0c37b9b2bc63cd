"""Llama-shaped models without transformers: their parameters under transformers' names, read from and saved to files.

Importing transformers takes longer than everything else that a small model needs before its first token. On a CPU the
passes through such a model are ours (llama_cpu.py, trainer/whole_layers.py) and need only its weights.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.weights.tensor_file import write_tensors

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not depend on the length of the sequence."""
_CONFIG, _GENERATION, _WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


class LlamaModel(torch.nn.Module):
    """A model's parameters in float32 on the CPU, with the names and order that they have in transformers.

    Only its norms can be called.
    """

    def __init__(
        self, config: Mapping[str, Json], generation: Mapping[str, Json], tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.family = _family(config)
        self._files = {_CONFIG: {**config, "dtype": "float32"}, _GENERATION: generation}
        self.model = _Body(config, tensors)
        tied = config["tie_word_embeddings"]
        self.lm_head = self.model.embed_tokens if tied else _Matrix(tensors, "lm_head")
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    def num_parameters(self) -> int:
        """Count the parameters as transformers does, with tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save(self, directory: Path) -> dict[str, str]:
        """Write the same files as transformers, byte for byte, and return the hash of the weights by their file's name.
        Raises OSError."""
        for name, content in self._files.items():
            written = {**content, "transformers_version": _transformers_version()}
            (directory / name).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
        return {_WEIGHTS: write_tensors(dict(self.named_parameters()), directory / _WEIGHTS, {"format": "pt"})}


@cache
def _transformers_version() -> str:
    """Return the installed version of transformers. The lookup takes 1.5 ms."""
    return version("transformers")


def supports_config(family: str, config: Any) -> bool:
    """Whether a model of that class and configuration is Llama-shaped and supported by our forward passes."""
    if family not in FAMILIES or config.hidden_act != "silu":
        return False
    layer_types = getattr(config, "layer_types", None)
    windowed = set(layer_types) != {"full_attention"} if layer_types else bool(getattr(config, "sliding_window", None))
    rope = config.rope_parameters
    return not windowed and rope.get("rope_type", "default") in ROPE_TYPES and not rope.get("partial_rotary_factor")


def is_readable(directory: Path) -> bool:
    """Whether `read` can read the model in a directory. Only what `read` needs is checked."""
    return _checked_config(directory) is not None


def read(directory: Path) -> LlamaModel | None:
    """Read the model in a directory. Return None if transformers should read it or report what is wrong with it,
    because transformers 5 did not write the files or the weights do not match the config."""
    config = _checked_config(directory)
    if config is None:
        return None
    try:
        tensors = load_file(directory / _WEIGHTS)
        generation = json.loads((directory / _GENERATION).read_text())
    except (OSError, ValueError, SafetensorError):
        return None
    return LlamaModel(config, generation, tensors)


def _checked_config(directory: Path) -> dict[str, Json] | None:
    try:
        config = json.loads((directory / _CONFIG).read_text())
        if not (_is_known(config) and (directory / _GENERATION).is_file()):
            return None
        with safe_open(directory / _WEIGHTS, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.offset_keys()}
        if config["num_hidden_layers"] > len(shapes):  # naming the tensors of a million layers takes gigabytes
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    return config if shapes == dict(_shapes(config)) else None


def _is_known(config: Mapping[str, Json]) -> bool:
    """Whether the model is supported. The config must use the terms of transformers 5 (`dtype`, `rope_parameters`)."""
    return (
        supports_config(_family(config), SimpleNamespace(**config))
        and config["rope_parameters"].keys() == {"rope_theta", "rope_type"}
        and config["rope_parameters"]["rope_type"] == "default"
        and "dtype" in config
        and not config.keys() & {"quantization_config", "auto_map"}
        and isinstance(config["tie_word_embeddings"], bool)
        and isinstance(config["rms_norm_eps"], float)
        and all(isinstance(config[name], int) for name in _SIZES)
    )


def _family(config: Mapping[str, Json]) -> str:
    [family] = config["architectures"]
    return str(family)


def _head_dim(config: Mapping[str, Json]) -> int:
    dim: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return dim


def _shapes(config: Mapping[str, Json]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors that a model's file holds, with their shapes."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], _head_dim(config)
    heads, kv_heads = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    family = _family(config)
    biased = {"q_proj", "k_proj", "v_proj"} if family == "Qwen2ForCausalLM" else set[str]()
    if config.get("attention_bias"):
        biased |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if config.get("mlp_bias"):
        biased |= {"gate_proj", "up_proj", "down_proj"}
    matrices = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    gains = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if family == "Qwen3ForCausalLM":
        gains |= {"self_attn.q_norm": head, "self_attn.k_norm": head}
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, shape in matrices.items():
            yield f"{layer}.{name}.weight", shape
            if name.rpartition(".")[2] in biased:
                yield f"{layer}.{name}.bias", shape[:1]
        for name, size in gains.items():
            yield f"{layer}.{name}.weight", (size,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


class _Matrix(torch.nn.Module):
    """The weight of a linear layer or an embedding, and its bias if it has one."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.weight = _parameter(tensors[f"{name}.weight"])
        bias = tensors.get(f"{name}.bias")
        self.bias = None if bias is None else _parameter(bias)


class _Norm(torch.nn.Module):
    """RMSNorm (Zhang and Sennrich 2019) with the same operations as in transformers' modules."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str, eps: float) -> None:
        super().__init__()
        self.weight = _parameter(tensors[f"{name}.weight"])
        self.variance_epsilon = eps

    def forward(self, hidden: Tensor) -> Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))


class _Attention(torch.nn.Module):
    def __init__(self, config: Mapping[str, Json], tensors: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.head_dim = _head_dim(config)
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            _Matrix(tensors, f"{name}.{part}_proj") for part in ("q", "k", "v", "o")
        )
        if f"{name}.q_norm.weight" in tensors:
            self.q_norm, self.k_norm = (
                _Norm(tensors, f"{name}.{part}_norm", config["rms_norm_eps"]) for part in ("q", "k")
            )


class _Mlp(torch.nn.Module):
    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            _Matrix(tensors, f"{name}.{part}_proj") for part in ("gate", "up", "down")
        )


class _Layer(torch.nn.Module):
    def __init__(self, config: Mapping[str, Json], tensors: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.self_attn = _Attention(config, tensors, f"{name}.self_attn")
        self.mlp = _Mlp(tensors, f"{name}.mlp")
        self.input_layernorm = _Norm(tensors, f"{name}.input_layernorm", config["rms_norm_eps"])
        self.post_attention_layernorm = _Norm(tensors, f"{name}.post_attention_layernorm", config["rms_norm_eps"])


class _Body(torch.nn.Module):
    def __init__(self, config: Mapping[str, Json], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.embed_tokens = _Matrix(tensors, "model.embed_tokens")
        self.layers = torch.nn.ModuleList(
            _Layer(config, tensors, f"model.layers.{number}") for number in range(config["num_hidden_layers"])
        )
        self.norm = _Norm(tensors, "model.norm", config["rms_norm_eps"])
        self.rotary_emb = _Rotary(config)


class _Rotary:
    """The rotary embedding's angles (Su et al. 2021), by which each pair of a head rotates per position."""

    attention_scaling = 1.0

    def __init__(self, config: Mapping[str, Json]) -> None:
        dim = _head_dim(config)
        self.inv_freq = 1.0 / (config["rope_parameters"]["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))


def _parameter(tensor: Tensor) -> torch.nn.Parameter:
    # Copy even if the file is in float32. Bits can depend on a matrix's alignment in memory, which would otherwise be
    # that of the file.
    return torch.nn.Parameter(tensor.to(torch.float32, copy=True))
