"""The parts of a layer's forward and backward pass other than matrix products. On a GPU they use Triton and
FlashAttention, elsewhere plain torch, whose backward passes are autograd's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from learnloop_service.training.engine.trainer.packing import Packing
from learnloop_service.training.engine.weights.fp8 import Fp8Matrix
from learnloop_service.training.engine.weights.varlen_attention import varlen_attention


@dataclass(frozen=True, slots=True)
class Attended:
    """Attention's output [n, heads, D] and what else FlashAttention's backward pass needs."""

    out: Tensor
    logsumexp: Tensor
    state: tuple[Tensor, ...] = ()

    def without_out(self) -> "Attended":
        """Return a copy without the output, for callers that keep the output elsewhere."""
        return replace(self, out=self.out.new_empty(0))

    def with_out(self, out: Tensor) -> "Attended":
        """Return a copy with the output `out`, [n, heads * D]."""
        return replace(self, out=out)


def norm(hidden: Tensor, gain: Tensor, eps: float, out: Tensor, tokens: Fp8Matrix | None = None) -> None:
    """Write RMSNorm (Zhang and Sennrich 2019) of `hidden` [n, H] with `gain` [H] to `out`, and quantized to
    `tokens`."""
    if hidden.device.type == "cuda":
        from learnloop_service.training.engine.weights.triton_kernels import (
            add_norm,  # Triton comes with torch for CUDA only
        )

        add_norm(hidden, None, gain, eps, out, tokens)
        return
    out.copy_(F.rms_norm(hidden, gain.shape, gain, eps))
    if tokens:
        tokens.fill(out)


def norm_backward(hidden: Tensor, gain: Tensor, eps: float, grad: Tensor, onto: Tensor) -> Tensor:
    """Return the gradient of `hidden` from that of its norm, plus its other gradients `onto`."""
    if hidden.device.type == "cuda":
        from learnloop_service.training.engine.weights import triton_kernels

        return triton_kernels.norm_backward(hidden, gain, eps, grad, onto)
    [slope] = _slopes(lambda x: F.rms_norm(x, gain.shape, gain, eps), [hidden], grad)
    return onto + slope


def rotate(
    joint: Tensor, gains: Tensor | None, turns: Tensor, positions: Tensor, kv_heads: int, eps: float, *, keep: bool
) -> Tensor:
    """Norm (if `gains` are given) and rotate queries and keys, in place unless `keep`. Shapes are those of the
    kernel."""
    if joint.device.type == "cuda":
        from learnloop_service.training.engine.weights import triton_kernels

        return triton_kernels.rotate(joint, gains, turns, positions, kv_heads, eps, keep=keep)
    return _rotated(joint, gains, turns[positions], kv_heads, eps)


def rotate_backward(
    slopes: tuple[Tensor, Tensor, Tensor],
    raw: Tensor,
    gains: Tensor | None,
    turns: Tensor,
    positions: Tensor,
    eps: float,
) -> Tensor:
    """Return the gradient of `rotate`'s input from those of its queries, keys and values. Without `gains` only the
    shape of the input matters."""
    if raw.device.type == "cuda":
        from learnloop_service.training.engine.weights import triton_kernels

        return triton_kernels.rotate_backward(*slopes, raw, gains, turns, positions, eps)
    kv_heads = slopes[1].shape[1]
    grad = torch.cat(slopes, dim=1)
    [slope] = _slopes(lambda x: _rotated(x, gains, turns[positions], kv_heads, eps), [raw], grad)
    return slope


def silu_mul(gate_up: Tensor, out: Tensor, tokens: Fp8Matrix | None = None) -> None:
    """Write silu(gate) * up to `out` [n, I], and quantized to `tokens`. Gate and up are side by side in `gate_up` [n, 2
    I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if gate_up.device.type == "cuda":
        from learnloop_service.training.engine.weights import fp8_kernels, triton_kernels

        if tokens:
            fp8_kernels.silu_mul_quantised(gate, up, out, tokens)
        else:
            triton_kernels.silu_mul(gate, up, out)
        return
    out.copy_(F.silu(gate) * up)
    if tokens:
        tokens.fill(out)


def silu_mul_backward(gate_up: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient [n, 2 I] of gate and up from that of their product."""
    if gate_up.device.type == "cuda":
        from learnloop_service.training.engine.weights import triton_kernels

        slope = torch.empty_like(gate_up)
        (gate, up), (grad_gate, grad_up) = gate_up.chunk(2, dim=-1), slope.chunk(2, dim=-1)
        triton_kernels.silu_mul_backward(gate, up, grad, grad_gate, grad_up)
        return slope
    [slope] = _slopes(lambda x: F.silu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1], [gate_up], grad)
    return slope


Heads = tuple[Tensor, Tensor, Tensor]
"""Queries [n, heads, D], keys and values [n, kv_heads, D]."""


Before = tuple[Tensor, Tensor]
"""Keys and values of a stem, [s, kv_heads, D]."""


def attend(heads: Heads, packing: Packing, scale: float, before: Before | None) -> Attended:
    """Compute causal attention of packed queries over the keys and values of their sequences, including a stem's."""
    query, *keys_and_values = heads
    key, value = (
        packing.gathered(part, stem) for part, stem in zip(keys_and_values, before or (None, None), strict=True)
    )
    segments = packing.segments
    if query.device.type != "cuda":
        return Attended(varlen_attention(query, key, value, segments, scale=scale), query.new_empty(0))
    out, logsumexp, *state = torch.ops.aten._flash_attention_forward(
        query, key, value, segments.queries, segments.keys, segments.longest_queries, segments.longest_keys,
        0.0, True, False, scale=scale,
    )  # fmt: skip
    return Attended(out, logsumexp, tuple(state[:2]))


def attend_backward(
    grad: Tensor, heads: Heads, attended: Attended, packing: Packing, scale: float, before: Before | None
) -> Heads:
    """Return the gradients of queries, keys and values from that of the output [n, heads * D], with a stem's first.
    Shared tokens get the float32 sum over all sequences that share them."""
    query, *keys_and_values = heads
    segments, shape = packing.segments, query.shape
    keys, values = (
        packing.gathered(part, stem) for part, stem in zip(keys_and_values, before or (None, None), strict=True)
    )
    grad = grad.reshape(shape)
    if query.device.type == "cuda":
        slopes: Sequence[Tensor] = torch.ops.aten._flash_attention_backward(
            grad, query, keys, values, attended.out.view(shape), attended.logsumexp,
            segments.queries, segments.keys, segments.longest_queries, segments.longest_keys,
            0.0, True, *attended.state, scale=scale,
        )  # fmt: skip
    else:
        slopes = _slopes(lambda q, k, v: varlen_attention(q, k, v, segments, scale=scale), [query, keys, values], grad)
    grad_query, grad_keys, grad_values = slopes
    if packing.keys is None:
        return grad_query, grad_keys, grad_values
    count = len(query) + (len(before[0]) if before else 0)
    sums = torch.zeros((2, count, *keys.shape[1:]), dtype=torch.float32, device=keys.device)
    for total, slope in zip(sums, (grad_keys, grad_values), strict=True):
        total.index_add_(0, packing.keys, slope.float())
    return grad_query, sums[0], sums[1]


def _rotated(joint: Tensor, gains: Tensor | None, turns: Tensor, kv_heads: int, eps: float) -> Tensor:
    turned, values = joint[:, :-kv_heads], joint[:, -kv_heads:]
    if gains is not None:
        turned = F.rms_norm(turned, turned.shape[-1:], None, eps) * gains
    low, high = turned.chunk(2, dim=-1)
    cos, sin = turns[:, None].unbind(-1)
    return torch.cat([torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1), values], dim=1)


def _slopes(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a function's inputs from that of its output."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        return torch.autograd.grad(function(*leaves), leaves, grad)
