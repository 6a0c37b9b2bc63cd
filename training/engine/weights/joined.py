"""The matrices of a Llama-shaped model, joined into a few large ones, with columns for the adapters in use.

A LoRA layer computes W x + s B (A x). Here the matrix is [W | s B] and its input [x | A x], so one product gives both
terms, and its transpose gives both gradients. An adapter therefore costs about a hundredth of a product instead of a
pass over its output, and one copy of the base serves training and sampling under any number of adapters. `use` puts one
adapter in place for all tokens; `use_together` puts several side by side, as far as the columns suffice. Each token
then keeps only the part of A x that its own adapter computed, and the other adapters' columns are multiplied by zero.

W can be in 8 bits, with s B in the model's precision, for both sampling and training. Tensor cores require both 8-bit
factors of a product to be contiguous along the summed dimension, so W is transposed for the gradient of the input.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from learnloop_service.training.engine.weights import fp8, fp8_products
from learnloop_service.training.engine.weights.adapters import COLUMN_MULTIPLE, is_adapted
from learnloop_service.training.engine.weights.attention import round_up
from learnloop_service.training.engine.weights.fp8 import Fp8Matrix
from learnloop_service.training.engine.weights.stages import stages_of

ROPE_BLOCK = 1024
HEAD_DIMS = (16, 32, 64, 128, 256)
"""Head dimensions that the GPU kernels support."""


@dataclass(frozen=True, slots=True)
class JointSlot:
    """The position of one linear layer in a joint: its rows of the matrix and its columns for an adapter's ranks."""

    low: Tensor
    """A, [ranks, in]."""
    high: Tensor
    """s B, [out, ranks]."""
    rows: slice
    columns: slice
    """The layer's columns among the joint's adapter columns."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Linear layers with the same input. `matrix` is [out, in + columns] and `low` [columns, in]. If the layers' own
    weights are in 8 bits, `matrix` is [out, columns]."""

    matrix: Tensor
    low: Tensor
    bias: Tensor | None
    slots: tuple[JointSlot, ...]
    in_fp8: Fp8Matrix | None = None
    """The layers' own weights [out, in] if they are in 8 bits. `matrix` does not contain them then."""

    @property
    def weight(self) -> Tensor:
        """The layers' own weights, [out, in], if they are not in 8 bits."""
        return self.inputs(self.matrix)

    @property
    def high(self) -> Tensor:
        """s B, [out, columns]."""
        return self.matrix[:, self.matrix.shape[1] - len(self.low) :]

    @classmethod
    def of(
        cls, linears: list[Any], device: torch.device, dtype: torch.dtype, ranks: int, *, share: bool, in_fp8: bool
    ) -> "Joint":
        """Join linear layers, for adapters of up to `ranks` ranks in total. `share` makes the layers' weights views of
        the joint. With `in_fp8`, if the dimensions allow it, there is nothing to view and they become NaN."""
        plain = [getattr(linear, "base_layer", linear) for linear in linears]
        rows, inputs = [len(linear.weight) for linear in plain], plain[0].weight.shape[1]
        in_fp8 = in_fp8 and fp8.fits(sum(rows), inputs)
        width = 0 if in_fp8 else inputs
        columns = round_up(ranks * len(plain), COLUMN_MULTIPLE) if ranks else 0
        matrix = torch.zeros((sum(rows), width + columns), device=device, dtype=dtype)
        low = torch.zeros((columns, inputs), device=device, dtype=dtype)
        rounded = None
        if in_fp8:
            rounded = Fp8Matrix.of(torch.cat([linear.weight.detach() for linear in plain]).to(device, dtype))
        slots = []
        for number, (stop, linear) in enumerate(zip(itertools.accumulate(rows), plain, strict=True)):
            row_range, column_range = (
                slice(stop - len(linear.weight), stop),
                slice(number * ranks, (number + 1) * ranks),
            )
            slots.append(
                JointSlot(low[column_range], matrix[row_range, width:][:, column_range], row_range, column_range)
            )
            if not in_fp8:
                matrix[row_range, :width].copy_(linear.weight.detach())
            if share:
                gone = matrix.new_full((), torch.nan).expand(linear.weight.shape)
                linear.weight.data = gone if in_fp8 else matrix[row_range, :width]
        bias = None
        if plain[0].bias is not None:
            bias = torch.cat([linear.bias.detach() for linear in plain]).to(device, dtype)
        return cls(matrix, low, bias, tuple(slots), rounded)

    def room(self, count: int) -> Tensor:
        """Allocate a room [count, in + columns]: the first columns take the inputs, and a product fills the last
        ones."""
        return self.low.new_empty((count, sum(self.low.shape)))

    def inputs(self, room: Tensor) -> Tensor:
        """The columns of a room for the inputs, [count, in]."""
        return room[:, : self.low.shape[1]]

    def narrow(self, room: Tensor) -> Tensor:
        """The last columns of a room, [count, columns], which hold A x after a product."""
        return room[:, self.low.shape[1] :]

    def tokens_in_fp8(self, count: int) -> Fp8Matrix | None:
        """Allocate memory for `count` inputs in 8 bits, or return None if the matrix is not in 8 bits."""
        return Fp8Matrix.empty(count, self.low.shape[1], self.low.device) if self.in_fp8 else None

    def product(
        self,
        room: Tensor,
        tokens: Fp8Matrix | None,
        *,
        onto: Tensor | None = None,
        others: Tensor | None = None,
        parts: bool = False,
    ) -> Tensor:
        """Return the layers' outputs side by side, [count, out], for the inputs in a room, added to `onto` [count,
        out]. If the matrix is in 8 bits, `tokens` must hold the inputs too. `others` is that of `fill_narrow`. With
        `parts` the result can be [parts, count, out], to be summed."""
        self.fill_narrow(room, others)
        if self.in_fp8 and tokens:
            out = fp8_products.product(tokens, self.in_fp8, self.narrow(room), self.high, self.bias, parts=parts)
            return out if onto is None else out.add_(onto)
        if onto is None:
            return F.linear(room, self.matrix, self.bias)
        out = torch.addmm(onto, room, self.matrix.t())
        return out if self.bias is None else out.add_(self.bias)

    def fill_narrow(self, room: Tensor, others: Tensor | None = None) -> None:
        """Compute A x, with 0 in columns that do not belong to the input's own adapter according to `others`
        (JoinedModel.others)."""
        if len(self.low):
            narrow = self.narrow(room)
            torch.mm(self.inputs(room), self.low.t(), out=narrow)
            if others is not None:
                narrow.masked_fill_(others[:, : len(self.low)], 0.0)


@dataclass(frozen=True, slots=True)
class JoinedLayer:
    """The joints of a layer and the gains of its norms."""

    qkv: Joint
    out: Joint
    gate_up: Joint
    down: Joint
    first_gain: Tensor
    second_gain: Tensor
    head_gains: Tensor | None
    """Gains [heads + kv_heads, head_dim] of the norms of queries and keys, if the model has them."""

    @property
    def joints(self) -> tuple[Joint, Joint, Joint, Joint]:
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, eq=False)
class Adapter:
    """Low-rank factors in a base's precision, with the scale multiplied into B: (A, s B) of each of a model's linear
    layers in the order of `JoinedModel.slots`, or None for a layer without one."""

    factors: tuple[tuple[Tensor, Tensor] | None, ...]

    @cached_property
    def ranks(self) -> int:
        """The largest rank of any layer."""
        return max((len(pair[0]) for pair in self.factors if pair), default=0)

    @cached_property
    def finite(self) -> bool:
        """Whether all numbers are finite. Masking with 0 does not work for others, since 0 times infinity is NaN."""
        parts = [part for pair in self.factors if pair for part in pair]
        norms = [norm.to(parts[0].device) for norm in torch._foreach_norm(parts)] if parts else []
        return not norms or bool(torch.stack(norms).isfinite().all())


class JoinedModel:
    """A Llama-shaped model's weights as joined matrices. `share` makes the model's own modules views of them."""

    def __init__(
        self,
        model: Any,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        *,
        ranks: int,
        share: bool,
        in_fp8: bool = False,
    ) -> None:
        """Layers are spread equally over `devices`, with whatever precedes them on the first and whatever follows on
        the last. With `share` the modules move there, one layer after another. `ranks` is the total rank of the
        adapters that can be in place together, which also limits a single one; 0 means none. With `in_fp8` the layers'
        matrices are kept in 8 bits for sampling and training and cannot be updated."""
        self.model: Any = None
        """The model whose modules are views of this one, if there is one."""
        body, config = model.model, model.config
        first = body.layers[0].self_attn
        self.dtype, self.ranks = dtype, ranks
        self.stages = stages_of(len(body.layers), devices)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = first.head_dim
        self.scale: float = first.scaling
        self.eps = float(config.rms_norm_eps)
        self.context: int = config.max_position_embeddings
        self.parameters: int = sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name)

        on_device = _moved if share else self._copy
        if share:
            for part, device in ((body.embed_tokens, 0), (body.rotary_emb, 0), (body.norm, -1), (model.lm_head, -1)):
                part.to(devices[device])
        self.embedding = on_device(body.embed_tokens.weight, devices[0])
        tied = model.lm_head.weight is body.embed_tokens.weight and devices[0] == devices[-1]
        self.head = self.embedding if tied else on_device(model.lm_head.weight, devices[-1])
        self.gain = on_device(body.norm.weight, devices[-1])
        self.layers = [
            self._layer(body.layers[number], stage.device, share, in_fp8)
            for stage in self.stages
            for number in stage.layers
        ]
        self.slots = tuple(slot for layer in self.layers for joint in layer.joints for slot in joint.slots)
        self._placed: dict[Adapter, int] = {}
        """The rank at which each placed adapter begins in every layer's columns, least recently used first."""
        self.captured: WeakKeyDictionary[Any, dict[Any, list[Any]]] = WeakKeyDictionary()
        """Captured decode steps by cache (CudaWeights). They serve all adapters."""
        self._inverse_frequencies = body.rotary_emb.inv_freq.detach().to(devices[0], torch.float32, copy=True)
        self._rope_scale = float(body.rotary_emb.attention_scaling)
        no_turns = torch.empty((0, self.head_dim // 2, 2), device=devices[0])
        self._turns = {stage.device: no_turns for stage in self.stages}

    @property
    def device(self) -> torch.device:
        """The device that takes the tokens."""
        return self.stages[0].device

    def _copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.detach().to(device, self.dtype, copy=True)

    def _layer(self, layer: Any, device: torch.device, share: bool, in_fp8: bool) -> JoinedLayer:
        if share:
            layer.to(device)
        groups = _groups(layer.self_attn, layer.mlp)
        has_norms = hasattr(layer.self_attn, "q_norm")
        gains = self._head_gains(layer.self_attn).to(device, self.dtype) if has_norms else None
        qkv, out, gate_up, down = (
            Joint.of(group, device, self.dtype, self.ranks, share=share, in_fp8=in_fp8) for group in groups
        )
        first, second = (
            self._copy(norm.weight, device) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        return JoinedLayer(qkv, out, gate_up, down, first, second, gains)

    def _head_gains(self, attention: Any) -> Tensor:
        query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        return torch.cat([query.expand(self.heads, -1), key.expand(self.kv_heads, -1)])

    def update(self, model: Any) -> None:
        """Copy the weights of a model of the same shape, in place."""
        with torch.no_grad():
            self.embedding.copy_(model.model.embed_tokens.weight)
            self.head.copy_(model.lm_head.weight)
            self.gain.copy_(model.model.norm.weight)
            for joined_layer, layer in zip(self.layers, model.model.layers, strict=True):
                for joint, group in zip(joined_layer.joints, _groups(layer.self_attn, layer.mlp), strict=True):
                    for slot, linear in zip(joint.slots, group, strict=True):
                        joint.weight[slot.rows].copy_(linear.weight)
                    if joint.bias is not None:
                        joint.bias.copy_(torch.cat([linear.bias for linear in group]))
                joined_layer.first_gain.copy_(layer.input_layernorm.weight)
                joined_layer.second_gain.copy_(layer.post_attention_layernorm.weight)
                if joined_layer.head_gains is not None:
                    joined_layer.head_gains.copy_(self._head_gains(layer.self_attn))

    def adapter(self, model: Any) -> Adapter:
        """Return a copy of the factors that are active on a model of this shape."""
        all_factors: list[tuple[Tensor, Tensor] | None] = []
        for slot, linear in zip(self.slots, linear_layers(model), strict=True):
            factors = low_rank_factors(linear)
            if factors is None:
                all_factors.append(None)
                continue
            low, high, scale = factors
            all_factors.append((self._copy(low, slot.low.device), self._copy(high.detach() * scale, slot.high.device)))
        return Adapter(tuple(all_factors))

    def use(self, adapter: Adapter | None) -> None:
        """Apply this adapter, or none, to all tokens until other adapters are put in place."""
        adapters = [] if adapter is None else [adapter]
        if list(self._placed) != adapters:
            self._fill(adapters)

    def rounds(self, adapters: Iterable[Adapter | None]) -> list[set[Adapter | None]]:
        """Group the adapters into rounds that each fit side by side, with those already in place first."""
        groups: list[set[Adapter | None]] = []
        free_ranks = 0
        for adapter in sorted(dict.fromkeys(adapters), key=lambda candidate: candidate not in self._placed):
            if not groups or self._room(adapter) > free_ranks:
                groups.append(set())
                free_ranks = self.ranks
            groups[-1].add(adapter)
            free_ranks -= self._room(adapter)
        return groups

    def use_together(self, adapters: Iterable[Adapter | None]) -> None:
        """Put the adapters of one of the `rounds` side by side. A newly placed one evicts the least recently used
        ones."""
        needed = {adapter for adapter in adapters if adapter is not None}
        older = [adapter for adapter in self._placed if adapter not in needed]
        if needed <= self._placed.keys():
            self._placed = {adapter: self._placed[adapter] for adapter in (*older, *needed)}
            return
        free_ranks = self.ranks - sum(map(self._room, needed))
        retained: list[Adapter] = []
        for adapter in reversed(older):
            if self._room(adapter) <= free_ranks:
                retained.insert(0, adapter)
                free_ranks -= self._room(adapter)
        self._fill([*retained, *needed])

    def ranges(self, adapters: Sequence[Adapter | None]) -> Tensor | None:
        """Return the range of ranks [n, 2], from and to, of each token's adapter, or None if a single adapter is in
        place for all of them. The range of a token without an adapter is empty."""
        if len(self._placed) < 2:
            return None
        starts = {adapter: (start, start + adapter.ranks) for adapter, start in self._placed.items()}
        return torch.tensor([(0, 0) if adapter is None else starts[adapter] for adapter in adapters])

    def others(self, ranges: Tensor) -> Tensor:
        """Return a mask [n, columns] of the joint columns that belong to adapters other than the token's, for `ranges`
        [n, 2]. A joint with fewer columns uses the first of them."""
        columns = max(len(joint.low) for joint in self.layers[0].joints)
        rank = torch.arange(columns, device=ranges.device) % self.ranks  # each of the joint's layers has as many
        return (rank < ranges[:, :1]) | (rank >= ranges[:, 1:])

    def _room(self, adapter: Adapter | None) -> int:
        """Return the number of ranks that an adapter takes. One that is not finite takes all of them, because it would
        corrupt the others."""
        if adapter is None:
            return 0
        return adapter.ranks if adapter.finite else self.ranks

    def _fill(self, adapters: Sequence[Adapter]) -> None:
        """Fill the columns with exactly these adapters, one after another."""
        self._placed = {}
        with torch.no_grad():
            for joint in itertools.chain.from_iterable(layer.joints for layer in self.layers):
                joint.low.zero_()
                joint.high.zero_()
            starts, targets, sources = {}, [], []
            for adapter, stop in zip(adapters, itertools.accumulate(member.ranks for member in adapters), strict=True):
                starts[adapter] = start = stop - adapter.ranks
                for slot, factors in zip(self.slots, adapter.factors, strict=True):
                    if factors is not None:
                        low, high = factors
                        targets += [slot.low[start : start + len(low)], slot.high[:, start : start + len(low)]]
                        sources += [low, high]
            if targets:
                torch._foreach_copy_(targets, sources)
        self._placed = starts

    def turns(self, positions: int, device: torch.device) -> Tensor:
        """Return cosines and sines [at least `positions`, D/2, 2] of the rotary embedding on one of the model's
        devices."""
        turns = self._turns[self.device]
        if len(turns) < positions:
            while len(turns) < positions:
                block = torch.arange(len(turns), len(turns) + ROPE_BLOCK, device=self.device)
                angles = block[:, None].float() * self._inverse_frequencies
                turns = torch.cat([turns, torch.stack([angles.cos(), angles.sin()], dim=-1) * self._rope_scale])
            self._turns = {other: turns.to(other) for other in self._turns}
        return self._turns[device]


def join(model: Any, ranks: int) -> None:
    """Join a Llama-shaped model's matrices as `model.joined`, with room for adapters of `ranks` ranks in total. Its
    modules keep views of them."""
    model.joined = JoinedModel(model, [model.device], model.dtype, ranks=ranks, share=True)


def has_kernels(model: Any) -> bool:
    """Whether the GPU kernels support a Llama-shaped model's heads."""
    return model.model.layers[0].self_attn.head_dim in HEAD_DIMS


def linear_layers(model: Any) -> Iterator[Any]:
    """Yield a Llama-shaped model's linear layers in the order of `JoinedModel.slots`."""
    for layer in model.model.layers:
        yield from itertools.chain(*_groups(layer.self_attn, layer.mlp))


def low_rank_factors(linear: Any) -> tuple[Tensor, Tensor, float] | None:
    """Return A, B and s of the adapter that is active on a linear layer, or None if there is none."""
    if not is_adapted(linear) or linear.disable_adapters:
        return None
    [name] = linear.active_adapters
    if name not in linear.lora_A:
        return None
    low, high = (cast(Tensor, part[name].weight) for part in (linear.lora_A, linear.lora_B))
    return low, high, float(linear.scaling[name])


def _groups(attention: Any, mlp: Any) -> tuple[list[Any], ...]:
    """Return a layer's linear layers, grouped by their input."""
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    )


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device)
