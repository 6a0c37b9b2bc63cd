"""LoRA training through a base's joined matrices, with a layer's forward and backward pass written out.

The base is frozen, so nothing is kept for its gradient. The backward pass of a layer needs only its input, the rotated
queries, keys and values, the attention's output, the hidden states between attention and MLP, gate and up, and the
adapter's intermediate result for each product. Norms and the MLP's elementwise product are recomputed, which costs one
pass over memory.

Over a base in 8 bits, tokens are quantized to 8 bits before each product with it, as in sampling, and so are gradients
before each product with its transpose. Everything else is as over any base: the adapter's contribution to a product,
its A x, and the gradients of A and B use the numbers before quantization.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from learnloop_service.training.engine.memory import free_bytes
from learnloop_service.training.engine.trainer import layer_kernels as kernels
from learnloop_service.training.engine.trainer.packing import Packing, Stem
from learnloop_service.training.engine.weights import fp8_products
from learnloop_service.training.engine.weights.fp8 import Fp8Matrix
from learnloop_service.training.engine.weights.joined import (
    Adapter,
    JoinedLayer,
    JoinedModel,
    Joint,
    linear_layers,
    low_rank_factors,
)
from learnloop_service.training.engine.weights.stages import layers_by_device, on
from learnloop_service.training.engine.weights.varlen_attention import Segments

Factors = tuple[Tensor, Tensor, float]
"""A, B and scale of a linear layer's adapter."""


class JoinedLayers:
    """The layers of a Llama-shaped model that has joined matrices and a LoRA adapter."""

    def __init__(self, base: Any) -> None:
        """`base` is the Hugging Face model with the adapter's layers in it and its JoinedModel as `joined`."""
        self.recompute = False
        """Whether only each layer's input is kept for the backward pass."""
        self._base = base
        self._joined: JoinedModel = base.joined
        self._adapter: tuple[int, Adapter] | None = None
        self._stems: dict[Adapter | None, _StemPass] = {}

    def __call__(self, tokens: Tensor, positions: Tensor, packing: Packing) -> Tensor:
        """Return the last layer's hidden states [n, H] before the norm, on that layer's device."""
        return self.begin(tokens, positions, packing)()

    def begin(self, tokens: Tensor, positions: Tensor, packing: Packing) -> Callable[[], Tensor]:
        """Run the first stage and return a function that runs the other stages and returns the last layer's hidden
        states."""
        factors = [low_rank_factors(linear) for linear in linear_layers(self._base)]
        adapter = self._use(factors)
        stem = self._stem(packing.stem, adapter, factors) if packing.stem else None
        layers = list(self._layers(positions, packing, factors, stem))
        first = len(self._joined.stages[0].layers)
        begun = _through(layers[:first], F.embedding(tokens, self._joined.embedding))

        def rest() -> Tensor:
            self._use(factors)
            return _through(layers[first:], begun)

        return rest

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices of the stages, from the one that takes tokens to the one that outputs hidden states."""
        return tuple(stage.device for stage in self._joined.stages)

    @property
    def in_stages(self) -> bool:
        """Whether there are several stages, so that one batch can begin while another finishes."""
        return len(self._joined.stages) > 1

    def _layers(
        self, positions: Tensor, packing: Packing, factors: Sequence[Factors | None], stem: "_StemPass | None"
    ) -> "Iterator[tuple[_Layer, list[Tensor | None]]]":
        """Yield each layer's work on a batch, with the adapter's A and B of the layer's linear layers."""
        joined = self._joined
        per_layer = len(factors) // len(joined.layers)
        for stage in joined.stages:
            turns = joined.turns(int(packing.segments.longest_keys), stage.device)
            own_packing, own_positions = packing.to(stage.device), positions.to(stage.device)
            for number in stage.layers:
                layer_factors = factors[number * per_layer : (number + 1) * per_layer]
                scales = [of_linear and of_linear[2] for of_linear in layer_factors]
                layer = joined.layers[number]
                work = _Layer(joined, layer, own_packing, turns, own_positions, self.recompute, scales, number, stem)
                yield (
                    work,
                    [
                        tensor
                        for of_linear in layer_factors
                        for tensor in (of_linear[:2] if of_linear else (None, None))
                    ],
                )

    def _stem(self, stem: Stem, adapter: Adapter | None, factors: Sequence[Factors | None]) -> "_StemPass":
        """Return the pass over a stem with the current adapter. Passes of earlier stems are dropped."""
        self._stems = {key: stem_pass for key, stem_pass in self._stems.items() if stem_pass.stem is stem}
        if adapter not in self._stems or self._stems[adapter].spent:
            count = len(stem.tokens)
            packing = Packing(Segments.of([count], [count], stem.tokens.device), None)
            positions = torch.arange(count, device=stem.tokens.device)
            hidden = F.embedding(stem.tokens, self._joined.embedding)
            self._stems[adapter] = _StemPass(stem, hidden, list(self._layers(positions, packing, factors, None)))
        return self._stems[adapter]

    def tokens_that_fit(self) -> float:
        """Number of tokens whose kept activations fit into the free memory. With several stages, the first one must
        hold two batches."""
        stages = self._joined.stages
        layers = layers_by_device([*stages, stages[0]] if self.in_stages else stages)
        return min(free_bytes(device) / (count * self.layer_bytes) for device, count in layers.items())

    @property
    def layer_bytes(self) -> int:
        """Bytes per token that each layer keeps for the backward pass."""
        joined = self._joined
        layer = joined.layers[0]
        parts = (layer.qkv.low, layer.qkv.low, layer.out.low)  # the input, the middle, the attention's output
        width = sum(part.shape[1] for part in parts) + sum(len(joint.low) for joint in layer.joints)
        width += len(layer.gate_up.high) + len(layer.qkv.high) * (1 if layer.head_gains is None else 2)
        return width * joined.dtype.itemsize

    def _use(self, factors: Sequence[Factors | None]) -> Adapter | None:
        """Put the current adapter in place, since sampling may have used another one in the meantime."""
        if not any(factors):
            self._joined.use(None)
            return None
        version = sum(tensor._version for of_linear in factors if of_linear for tensor in of_linear[:2])
        if self._adapter is None or self._adapter[0] != version:
            self._adapter = version, self._joined.adapter(self._base)
        self._joined.use(self._adapter[1])
        return self._adapter[1]


@dataclass(frozen=True, slots=True)
class _Activations:
    """Tensors that the backward pass of a layer needs in addition to its input. `raw` is set if the model norms its
    heads."""

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
    """One layer's work on one batch or on its stem. `scales` are those of its linear layers' adapters, with None for a
    layer without one."""

    model: JoinedModel
    layer: JoinedLayer
    packing: Packing
    turns: Tensor
    positions: Tensor
    recompute: bool
    scales: Sequence[float | None]
    number: int
    stem: "_StemPass | None"

    @property
    def device(self) -> torch.device:
        return self.layer.first_gain.device

    def forward(self, hidden: Tensor) -> tuple[Tensor, _Activations]:
        """Return the hidden states after the layer and what its backward pass needs, all on the layer's device."""
        with on(self.device):
            return self._forward(hidden)

    def _forward(self, hidden: Tensor) -> tuple[Tensor, _Activations]:
        model, layer, eps = self.model, self.layer, self.model.eps
        tokens = layer.qkv.tokens_in_fp8(len(hidden))
        room = self._normed(layer.qkv, hidden, layer.first_gain, tokens)
        raw = layer.qkv.product(room, tokens).view(len(hidden), -1, model.head_dim)
        narrow = layer.qkv.narrow(room).clone()
        keep = layer.head_gains is not None
        joint = kernels.rotate(raw, layer.head_gains, self.turns, self.positions, model.kv_heads, eps, keep=keep)
        before = self.stem.keys_and_values[self.number] if self.stem else None
        attended = kernels.attend(self.heads(joint), self.packing, model.scale, before)
        mixed = layer.out.room(len(hidden))
        layer.out.inputs(mixed).copy_(attended.out.flatten(1))
        tokens = fp8_products.quantised(layer.out.inputs(mixed)) if layer.out.in_fp8 else None
        middle = layer.out.product(mixed, tokens, onto=hidden)
        tokens = layer.gate_up.tokens_in_fp8(len(hidden))
        room = self._normed(layer.gate_up, middle, layer.second_gain, tokens)
        gate_up = layer.gate_up.product(room, tokens)
        narrow_middle = layer.gate_up.narrow(room).clone()
        tokens = layer.down.tokens_in_fp8(len(hidden))
        room = self._activated(gate_up, tokens)
        out = layer.down.product(room, tokens, onto=middle)
        narrow_down = layer.down.narrow(room).clone()
        attended = attended.without_out()
        activations = _Activations(
            joint, raw if keep else None, narrow, mixed, attended, middle, narrow_middle, gate_up, narrow_down
        )
        return out, activations

    def backward(
        self,
        hidden: Tensor,
        activations: _Activations,
        grad: Tensor,
        needs_input: bool,
        onto: kernels.Before | None = None,
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Return the gradients of the input and, layer by layer, of A and B. `onto` holds gradients of keys and values
        from other sources, to be added."""
        with on(self.device):
            return self._backward(hidden, activations, grad, needs_input, onto)

    def _backward(
        self, hidden: Tensor, activations: _Activations, grad: Tensor, needs_input: bool, onto: kernels.Before | None
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        model, layer, eps = self.model, self.layer, self.model.eps
        room = self._activated(activations.gate_up)
        slope, down = self._product_backward(
            layer.down, grad, layer.down.inputs(room), activations.narrow_down, self.scales[6:]
        )
        slope = kernels.silu_mul_backward(activations.gate_up, slope)
        room = self._normed(layer.gate_up, activations.middle, layer.second_gain)
        slope, gate_up = self._product_backward(
            layer.gate_up, slope, layer.gate_up.inputs(room), activations.narrow_middle, self.scales[4:6]
        )
        grad = kernels.norm_backward(activations.middle, layer.second_gain, eps, slope, grad)
        slope, out = self._product_backward(
            layer.out, grad, layer.out.inputs(activations.mixed), layer.out.narrow(activations.mixed), self.scales[3:4]
        )
        attended = activations.attended.with_out(layer.out.inputs(activations.mixed))
        before = self.stem.keys_and_values[self.number] if self.stem else None
        heads = self.heads(activations.joint)
        slopes = kernels.attend_backward(slope, heads, attended, self.packing, model.scale, before)
        if self.stem:
            slopes = self.stem.take(self.number, slopes)
        if onto:
            slopes = slopes[0], slopes[1] + onto[0], slopes[2] + onto[1]
        raw = activations.joint if activations.raw is None else activations.raw
        slope = kernels.rotate_backward(slopes, raw, layer.head_gains, self.turns, self.positions, eps).flatten(1)
        room = self._normed(layer.qkv, hidden, layer.first_gain)
        inputs = layer.qkv.inputs(room)
        slope, qkv = self._product_backward(layer.qkv, slope, inputs, activations.narrow, self.scales[:3], needs_input)
        factors = [*qkv, *out, *gate_up, *down]
        if not needs_input:
            return None, factors
        return kernels.norm_backward(hidden, layer.first_gain, eps, slope, grad), factors

    def _normed(self, joint: Joint, hidden: Tensor, gain: Tensor, tokens: Fp8Matrix | None = None) -> Tensor:
        room = joint.room(len(hidden))
        kernels.norm(hidden, gain, self.model.eps, joint.inputs(room), tokens)
        return room

    def _activated(self, gate_up: Tensor, tokens: Fp8Matrix | None = None) -> Tensor:
        room = self.layer.down.room(len(gate_up))
        kernels.silu_mul(gate_up, self.layer.down.inputs(room), tokens)
        return room

    def heads(self, joint: Tensor) -> kernels.Heads:
        """Split the joint product into queries, keys and values."""
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
        """Return the gradients of a product's inputs and, layer by layer, of A and B. `narrow` is A x."""
        if joint.in_fp8 and needs_input:
            grad_narrow = grad @ joint.high
            grad_inputs = fp8_products.product_backward(grad, joint.in_fp8, grad_narrow, joint.low)
        elif needs_input:
            slope = grad @ joint.matrix
            grad_inputs, grad_narrow = joint.inputs(slope), joint.narrow(slope)
            grad_inputs.addmm_(grad_narrow, joint.low)
        else:
            grad_inputs, grad_narrow = grad, grad @ joint.high
        if not any(scales):
            return grad_inputs, [None] * (2 * len(scales))
        grad_low, grad_high = _exact_mm(grad_narrow.t(), inputs), _exact_mm(grad.t(), narrow)
        gradients: list[Tensor | None] = []
        for slot, scale in zip(joint.slots, scales, strict=True):
            gradients += (
                [None, None] if scale is None else [grad_low[slot.columns], grad_high[slot.rows, slot.columns] * scale]
            )
        return grad_inputs, gradients


class _StemPass:
    """The pass of the layers over a stem: their inputs, the keys and values that batches attend to, and the gradients
    of these.

    The stem's own backward pass follows those of all batches. It recomputes the stem's layers, which is cheap because a
    stem is short.
    """

    def __init__(self, stem: Stem, hidden: Tensor, layers: "list[tuple[_Layer, list[Tensor | None]]]") -> None:
        self.stem = stem
        self.keys_and_values: list[kernels.Before] = []
        self._layers = layers
        self._inputs: list[Tensor] = []
        self._slopes: list[kernels.Before | None] = [None] * len(layers)
        self._batches_left = stem.batches
        with torch.no_grad():
            for work, _ in layers:
                hidden = hidden.to(work.device)
                self._inputs.append(hidden)
                hidden, activations = work.forward(hidden)
                _, key, value = work.heads(activations.joint)
                self.keys_and_values.append((key.contiguous(), value.contiguous()))

    @property
    def spent(self) -> bool:
        """Whether the backward pass is done, after which nothing is held any more."""
        return not self._batches_left

    def take(self, number: int, slopes: kernels.Heads) -> kernels.Heads:
        """Keep the stem's part of a batch's gradients of keys and values, and return the batch's own part."""
        count, (query, key, value) = len(self.stem.tokens), slopes
        before = self._slopes[number]
        of_stem = key[:count], value[:count]
        self._slopes[number] = (
            (before[0] + of_stem[0], before[1] + of_stem[1]) if before else (of_stem[0].clone(), of_stem[1].clone())
        )
        return query, key[count:], value[count:]

    def batch_done(self) -> None:
        """Called once for each batch after its backward pass."""
        self._batches_left -= 1
        if self._batches_left:
            return
        grad: Tensor | None = torch.zeros_like(self._inputs[-1])
        for (work, factors), hidden, slopes in zip(
            reversed(self._layers), reversed(self._inputs), reversed(self._slopes), strict=True
        ):
            assert grad is not None
            _, activations = work.forward(hidden)
            grad, gradients = work.backward(hidden, activations, grad.to(work.device), work.number > 0, slopes)
            for factor, slope in zip(
                factors, _cut(gradients, [f if f is None else f.shape for f in factors]), strict=True
            ):
                if factor is not None and slope is not None:
                    factor.grad = slope if factor.grad is None else factor.grad + slope
        for per_layer in (self.keys_and_values, self._inputs, self._slopes, self._layers):
            per_layer.clear()


def _through(layers: "Sequence[tuple[_Layer, list[Tensor | None]]]", hidden: Tensor) -> Tensor:
    for work, tensors in layers:
        hidden = hidden.to(work.device)
        hidden = cast(Tensor, _LayerFunction.apply(hidden, work, *tensors))  # type: ignore[no-untyped-call]
    return hidden


class _LayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, work: _Layer, *factors: Tensor | None) -> Tensor:
        out, activations = work.forward(hidden)
        ctx.work, ctx.activations = work, None if work.recompute else activations
        ctx.shapes = [None if factor is None else factor.shape for factor in factors]
        ctx.save_for_backward(hidden)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,) = ctx.saved_tensors
        activations = ctx.activations or ctx.work.forward(hidden)[1]
        ctx.activations = None
        slope, gradients = ctx.work.backward(hidden, activations, grad.contiguous(), ctx.needs_input_grad[0])
        if ctx.work.stem and not ctx.work.number:
            ctx.work.stem.batch_done()
        return slope, None, *_cut(gradients, ctx.shapes)


def _cut(gradients: Sequence[Tensor | None], shapes: Sequence[torch.Size | None]) -> Iterator[Tensor | None]:
    """Cut gradients to the ranks of an adapter that has fewer of them than its slot."""
    for gradient, shape in zip(gradients, shapes, strict=True):
        yield None if gradient is None or shape is None else gradient[: shape[0], : shape[1]].contiguous()


def _exact_mm(one: Tensor, other: Tensor) -> Tensor:
    """Multiply two matrices without rounding the sums, which run over all tokens, to bfloat16."""
    if one.dtype == torch.bfloat16 and one.device.type == "cuda":
        return torch.mm(one, other, out_dtype=torch.float32)
    return one @ other
