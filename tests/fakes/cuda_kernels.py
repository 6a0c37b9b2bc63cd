"""The engine's GPU forward pass on a CPU: plain torch replaces its kernels, and no graphs are captured."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from learnloop_service.training.engine.trainer import layer_kernels
from learnloop_service.training.engine.weights.fp8 import Fp8Matrix
from learnloop_service.training.engine.weights.paged_cache import PAGE
from learnloop_service.training.engine.weights.shared_prefix import SharedPrefix

WEIGHTS = "learnloop_service.training.engine.weights"
Outputs = Tensor | tuple[Tensor, ...]


def cuda_weights(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Return CudaWeights for models on a CPU."""
    weights_class: type[Any] = _module("llama_cuda", monkeypatch).CudaWeights
    product = torch.mm

    def mm(*operands: Tensor, out_dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        multiplied = product(*operands, **options)
        return multiplied if out_dtype is None else multiplied.to(out_dtype)

    monkeypatch.setattr(torch, "mm", mm)
    return weights_class


def packed_modules(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Return PackedModules for models on a CPU."""
    modules_class: type[Any] = _module("packed_modules", monkeypatch).PackedModules
    return modules_class


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of weights that computes with the kernels."""
    kernels, kernels_of_fp8 = ModuleType("triton_kernels"), ModuleType("fp8_kernels")
    vars(kernels).update(add_norm=_add_norm, decode_attention=_decode_attention, rotate=_rotate, silu_mul=_silu_mul)
    vars(kernels_of_fp8).update(silu_mul_quantised=_silu_mul_quantised)
    monkeypatch.setitem(sys.modules, f"{WEIGHTS}.triton_kernels", kernels)
    monkeypatch.setitem(sys.modules, f"{WEIGHTS}.fp8_kernels", kernels_of_fp8)
    # lets monkeypatch restore the original module after the test
    monkeypatch.setitem(sys.modules, f"{WEIGHTS}.{name}", kernels)
    del sys.modules[f"{WEIGHTS}.{name}"]
    module = import_module(f"{WEIGHTS}.{name}")
    monkeypatch.setattr(module, "captured", _captured)
    return module


def _captured(run: Callable[[], Outputs], device: torch.device, pool: object) -> "tuple[_Graph, Outputs]":
    outputs = run()
    return _Graph(run, outputs), outputs


@dataclass(frozen=True, slots=True)
class _Graph:
    """Stands in for a CUDA graph: computes the step, and copies the results to the graph's outputs."""

    step: Callable[[], Outputs]
    outputs: Outputs

    def pool(self) -> None:
        """A graph's memory, of which there is none."""

    def replay(self) -> None:
        for output, replayed in zip(_tensors(self.outputs), _tensors(self.step()), strict=True):
            output.copy_(replayed)


def _tensors(outputs: Outputs) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _add_norm(
    hidden: Tensor, change: Tensor | None, gain: Tensor, eps: float, out: Tensor, tokens: Fp8Matrix | None = None
) -> None:
    if change is not None:
        hidden += change
    out.copy_(F.rms_norm(hidden, gain.shape, gain.to(hidden.dtype), eps))
    if tokens:
        tokens.fill(out)


def _rotate(
    joint: Tensor,
    gains: Tensor | None,
    turns: Tensor,
    positions: Tensor,
    kv_heads: int,
    eps: float,
    *,
    store: tuple[Tensor, Tensor, Tensor],
) -> None:
    joint.copy_(layer_kernels.rotate(joint, gains, turns, positions, kv_heads, eps, keep=True))
    places, keys, values = store
    keys[places], values[places] = joint[:, -2 * kv_heads :].chunk(2, dim=1)


def _silu_mul(gate: Tensor, up: Tensor, out: Tensor) -> None:
    out.copy_(F.silu(gate) * up)


def _silu_mul_quantised(gate: Tensor, up: Tensor, out: Tensor, tokens: Fp8Matrix) -> None:
    _silu_mul(gate, up, out)
    tokens.fill(out)


def _decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    tables: Tensor,
    prefix: SharedPrefix,
    scale: float,
    joined: Tensor,
    window: int | None = None,
) -> None:
    joined.zero_()
    pages = int(prefix.tokens) // PAGE
    assert (tables[positions >= 0, :pages] == prefix.table[:pages]).all()
    for row, position in enumerate(positions.tolist()):
        if position >= 0:
            tokens = torch.arange(max(position + 1 - window, 0) if window else 0, position + 1)
            places = tables[row].long()[tokens // PAGE] * PAGE + tokens % PAGE
            key, value = (part[places].transpose(0, 1) for part in (keys, values))
            out = F.scaled_dot_product_attention(query[row][:, None], key, value, scale=scale, enable_gqa=True)
            joined[row] = out.flatten()
