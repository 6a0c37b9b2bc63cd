"""LoRA training through a base's joined matrices: a layer's forward and backward pass written out.

The base is frozen, so nothing is kept for its gradient: of each layer the backward pass needs its input, the rotated
queries, keys and values, the attention's output, the hidden states between attention and MLP, gate and up, and what the
adapter made of each product's input. Norms and the MLP's product are computed again: they cost one pass over memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from training.engine.trainer import layer_kernels as kernels
from training.engine.trainer.packing import Packing
from training.engine.weights.joined import Adapter, JoinedLayer, JoinedModel, Joint, linear_layers, low_rank_factors


class JoinedLayers:
    """The layers of a Llama-shaped model with a LoRA adapter, whose base is joined."""

    def __init__(self, base: Any) -> None:
        """`base` is the Hugging Face model, with the adapter's layers in it and its JoinedModel as `joined`."""
        self.recompute = False
        """Whether of each layer only the input is kept for the backward pass."""
        self._base = base
        self._joined: JoinedModel = base.joined
        self._adapter: tuple[int, Adapter] | None = None

    def __call__(self, tokens: Tensor, positions: Tensor, packing: Packing) -> Tensor:
        """The last layer's hidden states [n, H] before the norm."""
        factors = [low_rank_factors(linear) for linear in linear_layers(self._base)]
        self._use(factors)
        joined = self._joined
        turns = joined.turns(int(packing.segments.longest_keys))
        hidden = F.embedding(tokens, joined.embedding)
        per_layer = len(factors) // len(joined.layers)
        for number, layer in enumerate(joined.layers):
            own = factors[number * per_layer : (number + 1) * per_layer]
            work = _Layer(joined, layer, packing, turns, positions, self.recompute, [f and f[2] for f in own])
            tensors = [tensor for each in own for tensor in (each[:2] if each else (None, None))]
            hidden = cast(Tensor, _LayerFunction.apply(hidden, work, *tensors))  # type: ignore[no-untyped-call]
        return hidden

    @property
    def bytes_per_token(self) -> int:
        """What the backward pass keeps of a token, all layers together."""
        joined = self._joined
        layer = joined.layers[0]
        parts = (layer.qkv.low, layer.qkv.low, layer.out.low)  # the input, the middle, the attention's output
        width = sum(part.shape[1] for part in parts) + sum(len(joint.low) for joint in layer.joints)
        width += len(layer.gate_up.matrix) + len(layer.qkv.matrix) * (1 if layer.head_gains is None else 2)
        return len(joined.layers) * width * joined.dtype.itemsize

    def _use(self, factors: Sequence[tuple[Tensor, Tensor, float] | None]) -> None:
        """Put the adapter in place as it is now: sampling may have used another one since."""
        if not any(factors):
            return self._joined.use(None)
        version = sum(tensor._version for each in factors if each for tensor in each[:2])
        if self._adapter is None or self._adapter[0] != version:
            self._adapter = version, Adapter.of(self._base, self._joined.device, self._joined.dtype)
        return self._joined.use(self._adapter[1])


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the backward pass of a layer needs beside its input; `raw` where the model norms its heads."""

    joint: Tensor
    raw: Tensor | None
    narrow: Tensor
    mixed: Tensor
    attended: kernels.Attended
    middle: Tensor
    narrow_middle: Tensor
    gate_up: Tensor
    narrow_down: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer over one batch. `scales` are those of its linear layers' adapters, None where there is none."""

    model: JoinedModel
    layer: JoinedLayer
    packing: Packing
    turns: Tensor
    positions: Tensor
    recompute: bool
    scales: Sequence[float | None]

    def forward(self, hidden: Tensor) -> tuple[Tensor, _Kept]:
        model, layer, eps = self.model, self.layer, self.model.eps
        room = self._normed(layer.qkv, hidden, layer.first_gain)
        raw = layer.qkv.product(room).view(len(hidden), -1, model.head_dim)
        narrow = layer.qkv.narrow(room).clone()
        keep = layer.head_gains is not None
        joint = kernels.rotate(raw, layer.head_gains, self.turns, self.positions, model.kv_heads, eps, keep=keep)
        attended = kernels.attend(self._heads(joint), self.packing, model.scale)
        mixed = layer.out.room(len(hidden))
        layer.out.inputs(mixed).copy_(attended.out.flatten(1))
        middle = layer.out.product(mixed, onto=hidden)
        room = self._normed(layer.gate_up, middle, layer.second_gain)
        gate_up = layer.gate_up.product(room)
        narrow_middle = layer.gate_up.narrow(room).clone()
        room = self._activated(gate_up)
        out = layer.down.product(room, onto=middle)
        narrow_down = layer.down.narrow(room).clone()
        attended = attended.without_out()
        kept = _Kept(joint, raw if keep else None, narrow, mixed, attended, middle, narrow_middle, gate_up, narrow_down)
        return out, kept

    def backward(
        self, hidden: Tensor, kept: _Kept, grad: Tensor, needs_input: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of the input and, layer by layer, of A and B."""
        model, layer, eps = self.model, self.layer, self.model.eps
        room = self._activated(kept.gate_up)
        slope, down = self._product_backward(
            layer.down, grad, layer.down.inputs(room), kept.narrow_down, self.scales[6:]
        )
        slope = kernels.silu_mul_backward(kept.gate_up, slope)
        room = self._normed(layer.gate_up, kept.middle, layer.second_gain)
        slope, gate_up = self._product_backward(
            layer.gate_up, slope, layer.gate_up.inputs(room), kept.narrow_middle, self.scales[4:6]
        )
        grad = kernels.norm_backward(kept.middle, layer.second_gain, eps, slope, grad)
        slope, out = self._product_backward(
            layer.out, grad, layer.out.inputs(kept.mixed), layer.out.narrow(kept.mixed), self.scales[3:4]
        )
        attended = kept.attended.with_out(layer.out.inputs(kept.mixed))
        slopes = kernels.attend_backward(slope, self._heads(kept.joint), attended, self.packing, model.scale)
        raw = kept.joint if kept.raw is None else kept.raw
        slope = kernels.rotate_backward(slopes, raw, layer.head_gains, self.turns, self.positions, eps).flatten(1)
        room = self._normed(layer.qkv, hidden, layer.first_gain)
        inputs = layer.qkv.inputs(room)
        slope, qkv = self._product_backward(layer.qkv, slope, inputs, kept.narrow, self.scales[:3], needs_input)
        factors = [*qkv, *out, *gate_up, *down]
        if not needs_input:
            return None, factors
        return kernels.norm_backward(hidden, layer.first_gain, eps, slope, grad), factors

    def _normed(self, joint: Joint, hidden: Tensor, gain: Tensor) -> Tensor:
        room = joint.room(len(hidden))
        kernels.norm(hidden, gain, self.model.eps, joint.inputs(room))
        return room

    def _activated(self, gate_up: Tensor) -> Tensor:
        room = self.layer.down.room(len(gate_up))
        kernels.silu_mul(gate_up, self.layer.down.inputs(room))
        return room

    def _heads(self, joint: Tensor) -> kernels.Heads:
        model = self.model
        query, key, value = torch.split(joint, [model.heads, model.kv_heads, model.kv_heads], dim=1)
        return query, key, value

    def _product_backward(
        self,
        joint: Joint,
        grad: Tensor,
        inputs: Tensor,
        narrow: Tensor,
        scales: Sequence[float | None],
        needs_input: bool = True,
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The gradients of a product's inputs and, layer by layer, of A and B. `narrow` is A x."""
        if not any(scales):
            return joint.inputs(grad @ joint.matrix), [None] * (2 * len(scales))
        if needs_input:
            slope = grad @ joint.matrix
            grad_inputs, grad_narrow = joint.inputs(slope), joint.narrow(slope)
            grad_inputs.addmm_(grad_narrow, joint.low)
        else:
            grad_inputs, grad_narrow = grad, grad @ joint.matrix[:, joint.low.shape[1] :]
        grad_low, grad_high = _exact_mm(grad_narrow.t(), inputs), _exact_mm(grad.t(), narrow)
        found: list[Tensor | None] = []
        for slot, scale in zip(joint.slots, scales, strict=True):
            found += (
                [None, None] if scale is None else [grad_low[slot.columns], grad_high[slot.rows, slot.columns] * scale]
            )
        return grad_inputs, found


class _LayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, work: _Layer, *factors: Tensor | None) -> Tensor:
        out, kept = work.forward(hidden)
        ctx.work, ctx.kept = work, None if work.recompute else kept
        ctx.shapes = [None if factor is None else factor.shape for factor in factors]
        ctx.save_for_backward(hidden)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,) = ctx.saved_tensors
        kept = ctx.kept or ctx.work.forward(hidden)[1]
        ctx.kept = None
        slope, found = ctx.work.backward(hidden, kept, grad.contiguous(), ctx.needs_input_grad[0])
        return slope, None, *_cut(found, ctx.shapes)


def _cut(gradients: Sequence[Tensor | None], shapes: Sequence[torch.Size | None]) -> Iterator[Tensor | None]:
    """Of an adapter with fewer ranks than its place has."""
    for gradient, shape in zip(gradients, shapes, strict=True):
        yield None if gradient is None or shape is None else gradient[: shape[0], : shape[1]].contiguous()


def _exact_mm(one: Tensor, other: Tensor) -> Tensor:
    """A product whose sums, over all tokens, are not rounded to bfloat16."""
    if one.dtype == torch.bfloat16 and one.device.type == "cuda":
        return torch.mm(one, other, out_dtype=torch.float32)
    return one @ other
