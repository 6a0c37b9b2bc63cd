"""The matrices of a Llama-shaped model, joined to few large ones, with columns for the adapters that are in use.

A LoRA layer computes W x + s B (A x). Here the matrix is [W | s B] and its input [x | A x]: one product gives both,
and its transpose gives both gradients. So an adapter costs about a hundredth of a product instead of a pass over its
output, and one copy of the base serves training and sampling, under as many adapters as there are. `use` puts one in
place, for all tokens; `place` puts several side by side, as far as the columns go. Then of each token's A x only what
its own adapter made is kept: the others' columns are multiplied by nothing.

W can be in 8 bits, beside s B in the model's precision, to be sampled and trained over. Tensor cores want both factors
of a product in 8 bits to lie along what is summed over, so the gradient of the input needs a second copy, W^T, with
scales of its own. Both together take the bytes of one in bfloat16.
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

from training.engine.weights import fp8, fp8_products
from training.engine.weights.adapters import COLUMN_MULTIPLE, is_adapted
from training.engine.weights.attention import round_up
from training.engine.weights.fp8 import Fp8Matrix
from training.engine.weights.stages import stages_of

SHARED_PARAMETER_BYTES = 2
"""Of a parameter of a base that adapters share: in bfloat16, or twice in 8 bits."""
ROPE_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one linear layer lies in a joint: its rows of the matrix, and its columns for an adapter's ranks."""

    low: Tensor
    """[ranks, in]: A."""
    high: Tensor
    """[out, ranks]: s B."""
    rows: slice
    columns: slice
    """Of the joint's columns for adapters, those that are its own."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Linear layers with the same input. `matrix` is [out, in + columns] and `low` [columns, in]; where the layers' own
    weights are in 8 bits, `matrix` is [out, columns]."""

    matrix: Tensor
    low: Tensor
    bias: Tensor | None
    slots: tuple[Slot, ...]
    in_fp8: Fp8Matrix | None = None
    """[out, in]: the layers' own weights, where they are in 8 bits; `matrix` is without them then."""
    turned: Fp8Matrix | None = None
    """[in, out]: the same transposed, for the backward pass."""

    @property
    def weight(self) -> Tensor:
        """[out, in]: the layers' own weights, where they are not in 8 bits."""
        return self.inputs(self.matrix)

    @property
    def high(self) -> Tensor:
        """[out, columns]: s B."""
        return self.matrix[:, self.matrix.shape[1] - len(self.low) :]

    @classmethod
    def of(
        cls, linears: list[Any], device: torch.device, dtype: torch.dtype, ranks: int, *, share: bool, in_fp8: bool
    ) -> "Joint":
        """Of linear layers, for adapters of up to `ranks` ranks in all. `share` makes their weights views of it; with
        `in_fp8`, where their sizes are not too odd, there is nothing to view, and they become NaN."""
        plain = [getattr(linear, "base_layer", linear) for linear in linears]
        rows, inputs = [len(linear.weight) for linear in plain], plain[0].weight.shape[1]
        in_fp8 = in_fp8 and fp8.fits(sum(rows), inputs)
        width = 0 if in_fp8 else inputs
        columns = round_up(ranks * len(plain), COLUMN_MULTIPLE) if ranks else 0
        matrix = torch.zeros((sum(rows), width + columns), device=device, dtype=dtype)
        low = torch.zeros((columns, inputs), device=device, dtype=dtype)
        copies: list[Fp8Matrix] = []
        if in_fp8:
            whole = torch.cat([linear.weight.detach() for linear in plain]).to(device, dtype)
            copies = [Fp8Matrix.of(whole), Fp8Matrix.of(whole.t())]
        slots = []
        for number, (stop, linear) in enumerate(zip(itertools.accumulate(rows), plain, strict=True)):
            own, taken = slice(stop - len(linear.weight), stop), slice(number * ranks, (number + 1) * ranks)
            slots.append(Slot(low[taken], matrix[own, width:][:, taken], own, taken))
            if not in_fp8:
                matrix[own, :width].copy_(linear.weight.detach())
            if share:
                gone = matrix.new_full((), torch.nan).expand(linear.weight.shape)
                linear.weight.data = gone if in_fp8 else matrix[own, :width]
        bias = None
        if plain[0].bias is not None:
            bias = torch.cat([linear.bias.detach() for linear in plain]).to(device, dtype)
        return cls(matrix, low, bias, tuple(slots), *copies)

    def room(self, count: int) -> Tensor:
        """For `count` inputs, [count, in + columns]: the first columns are theirs, the last are filled by a product."""
        return self.low.new_empty((count, sum(self.low.shape)))

    def inputs(self, room: Tensor) -> Tensor:
        """The inputs' own columns [count, in] of such a room."""
        return room[:, : self.low.shape[1]]

    def narrow(self, room: Tensor) -> Tensor:
        """A x [count, columns]: the last columns of such a room, after a product."""
        return room[:, self.low.shape[1] :]

    def tokens_in_fp8(self, count: int) -> Fp8Matrix | None:
        """Where `count` inputs are put in 8 bits too, if the matrix is."""
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
        """[count, out]: the layers' outputs side by side for the inputs in a room, which are in `tokens` too if the
        matrix is in 8 bits; added `onto` [count, out]. `others` as in `fill_narrow`. With `parts` they may come as
        [parts, count, out], to be summed."""
        self.fill_narrow(room, others)
        if self.in_fp8 and tokens:
            out = fp8_products.product(tokens, self.in_fp8, self.narrow(room), self.high, self.bias, parts=parts)
            return out if onto is None else out.add_(onto)
        if onto is None:
            return F.linear(room, self.matrix, self.bias)
        out = torch.addmm(onto, room, self.matrix.t())
        return out if self.bias is None else out.add_(self.bias)

    def fill_narrow(self, room: Tensor, others: Tensor | None = None) -> None:
        """Compute A x; but where `others` (JoinedModel.others) says that a column is not of the input's own adapter,
        it is 0."""
        if len(self.low):
            narrow = self.narrow(room)
            torch.mm(self.inputs(room), self.low.t(), out=narrow)
            if others is not None:
                narrow.masked_fill_(others[:, : len(self.low)], 0.0)


@dataclass(frozen=True, slots=True)
class JoinedLayer:
    """The joints of a layer, and the gains of its norms."""

    qkv: Joint
    out: Joint
    gate_up: Joint
    down: Joint
    first_gain: Tensor
    second_gain: Tensor
    head_gains: Tensor | None
    """[heads + kv_heads, head_dim]: of the norms of queries and keys, where the model has them."""

    @property
    def joints(self) -> tuple[Joint, Joint, Joint, Joint]:
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, eq=False)
class Adapter:
    """Low-rank factors in a base's precision, the scale in B: (A, s B) of each of a model's linear layers, in the order
    of `JoinedModel.slots`; None where a layer has none."""

    factors: tuple[tuple[Tensor, Tensor] | None, ...]

    @cached_property
    def ranks(self) -> int:
        """Of the layer with the most."""
        return max((len(each[0]) for each in self.factors if each), default=0)

    @cached_property
    def finite(self) -> bool:
        """Whether all of its numbers are. Nothing times one that is not is no longer nothing."""
        parts = [part for each in self.factors if each for part in each]
        norms = [norm.to(parts[0].device) for norm in torch._foreach_norm(parts)] if parts else []
        return not norms or bool(torch.stack(norms).isfinite().all())


class JoinedModel:
    """A Llama-shaped model's weights as matrices; `share` makes the model's own modules views of them."""

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
        """On `devices` the layers lie in equal parts, what precedes them on the first and what follows on the last.
        `ranks`: of the adapters that it can have at once, and so of the largest; 0 for none. With `in_fp8` the layers'
        matrices are kept in 8 bits, to be sampled and trained over: not to be updated."""
        self.model: Any = None
        """The modules that are views of it, where others are made of them."""
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

        def mine(tensor: Tensor, device: torch.device) -> Tensor:
            return tensor.detach().to(device) if share else tensor.detach().to(device, dtype, copy=True)

        self.embedding = mine(body.embed_tokens.weight, devices[0])
        tied = model.lm_head.weight is body.embed_tokens.weight and devices[0] == devices[-1]
        self.head = self.embedding if tied else mine(model.lm_head.weight, devices[-1])
        self.gain = mine(body.norm.weight, devices[-1])
        self.layers = [
            self._layer(body.layers[number], stage.device, share, in_fp8)
            for stage in self.stages
            for number in stage.layers
        ]
        self.slots = tuple(slot for layer in self.layers for joint in layer.joints for slot in joint.slots)
        self._placed: dict[Adapter, int] = {}
        """At which rank of each layer's columns an adapter begins; the one that was not used for longest is first."""
        self.captured: WeakKeyDictionary[Any, dict[Any, list[Any]]] = WeakKeyDictionary()
        """Of each cache the decode steps that were captured (CudaWeights); they serve all adapters."""
        self._inverse_frequencies = body.rotary_emb.inv_freq.detach().to(devices[0], torch.float32, copy=True)
        self._rope_scale = float(body.rotary_emb.attention_scaling)
        empty = torch.empty((0, self.head_dim // 2, 2), device=devices[0])
        self._turns = {stage.device: empty for stage in self.stages}

    @property
    def device(self) -> torch.device:
        """Where tokens go in."""
        return self.stages[0].device

    def _layer(self, layer: Any, device: torch.device, share: bool, in_fp8: bool) -> JoinedLayer:
        def gain(norm: Any) -> Tensor:
            return cast(Tensor, norm.weight).detach().to(device, self.dtype, copy=True)

        groups = _groups(layer.self_attn, layer.mlp)
        gains = self._head_gains(layer.self_attn).to(device, self.dtype) if _has_head_norms(layer) else None
        qkv, out, gate_up, down = (
            Joint.of(group, device, self.dtype, self.ranks, share=share, in_fp8=in_fp8) for group in groups
        )
        norms = gain(layer.input_layernorm), gain(layer.post_attention_layernorm)
        return JoinedLayer(qkv, out, gate_up, down, *norms, gains)

    def _head_gains(self, attention: Any) -> Tensor:
        query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        return torch.cat([query.expand(self.heads, -1), key.expand(self.kv_heads, -1)])

    def update(self, model: Any) -> None:
        """Take over the weights of a model of the same shape, in place."""
        with torch.no_grad():
            self.embedding.copy_(model.model.embed_tokens.weight)
            self.head.copy_(model.lm_head.weight)
            self.gain.copy_(model.model.norm.weight)
            for mine, layer in zip(self.layers, model.model.layers, strict=True):
                for joint, group in zip(mine.joints, _groups(layer.self_attn, layer.mlp), strict=True):
                    for slot, linear in zip(joint.slots, group, strict=True):
                        joint.weight[slot.rows].copy_(linear.weight)
                    if joint.bias is not None:
                        joint.bias.copy_(torch.cat([linear.bias for linear in group]))
                mine.first_gain.copy_(layer.input_layernorm.weight)
                mine.second_gain.copy_(layer.post_attention_layernorm.weight)
                if mine.head_gains is not None:
                    mine.head_gains.copy_(self._head_gains(layer.self_attn))

    def adapter(self, model: Any) -> Adapter:
        """A copy of the factors that are active on a model of this shape."""
        found: list[tuple[Tensor, Tensor] | None] = []
        for slot, linear in zip(self.slots, linear_layers(model), strict=True):
            factors = low_rank_factors(linear)
            if factors is None:
                found.append(None)
                continue
            low, high, scale = factors
            scaled = (high.detach() * scale).to(slot.high.device, self.dtype, copy=True)
            found.append((low.detach().to(slot.low.device, self.dtype, copy=True), scaled))
        return Adapter(tuple(found))

    def use(self, adapter: Adapter | None) -> None:
        """Have the products be those with this adapter, or with none, whatever the token, until others are put in its
        place."""
        wanted = [] if adapter is None else [adapter]
        if list(self._placed) != wanted:
            self._fill(wanted)

    def rounds(self, adapters: Iterable[Adapter | None]) -> list[set[Adapter | None]]:
        """The adapters in as many parts as it takes for each to fit side by side, those that are in place first."""
        found: list[set[Adapter | None]] = []
        left = 0
        for adapter in sorted(dict.fromkeys(adapters), key=lambda each: each not in self._placed):
            if not found or self._room(adapter) > left:
                found.append(set())
                left = self.ranks
            found[-1].add(adapter)
            left -= self._room(adapter)
        return found

    def place(self, adapters: Iterable[Adapter | None]) -> None:
        """Have these adapters, one of the `rounds`, side by side. For one that is not there yet those give way that
        were not used for longest."""
        wanted = {adapter for adapter in adapters if adapter is not None}
        older = [adapter for adapter in self._placed if adapter not in wanted]
        if wanted <= self._placed.keys():
            self._placed = {adapter: self._placed[adapter] for adapter in (*older, *wanted)}
            return
        left = self.ranks - sum(map(self._room, wanted))
        kept: list[Adapter] = []
        for adapter in reversed(older):
            if self._room(adapter) <= left:
                kept.insert(0, adapter)
                left -= self._room(adapter)
        self._fill([*kept, *wanted])

    def ranges(self, adapters: Sequence[Adapter | None]) -> Tensor | None:
        """[n, 2]: the ranks, from and to, at which each token's adapter lies; None where one is there alone, for all
        of them. Those of a token without an adapter are none."""
        if len(self._placed) < 2:
            return None
        starts = {adapter: (start, start + adapter.ranks) for adapter, start in self._placed.items()}
        return torch.tensor([(0, 0) if each is None else starts[each] for each in adapters])

    def others(self, ranges: Tensor) -> Tensor:
        """[n, columns]: whether a column of a joint belongs to another adapter than the token's, for `ranges` [n, 2].
        A joint with fewer columns has the first of them."""
        columns = max(len(joint.low) for joint in self.layers[0].joints)
        rank = torch.arange(columns, device=ranges.device) % self.ranks  # each of its layers has as many
        return (rank < ranges[:, :1]) | (rank >= ranges[:, 1:])

    def _room(self, adapter: Adapter | None) -> int:
        """Ranks that an adapter takes. One that is not finite has no other beside it, because it would spoil that."""
        if adapter is None:
            return 0
        return adapter.ranks if adapter.finite else self.ranks

    def _fill(self, adapters: Sequence[Adapter]) -> None:
        """Have exactly these adapters in the columns, one after the other."""
        self._placed = {}
        with torch.no_grad():
            for joint in itertools.chain.from_iterable(layer.joints for layer in self.layers):
                joint.low.zero_()
                joint.high.zero_()
            starts, targets, sources = {}, [], []
            for adapter, stop in zip(adapters, itertools.accumulate(each.ranks for each in adapters), strict=True):
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
        """Cosine and sine [at least `positions`, D/2, 2] of the rotary embedding, on one of the model's devices."""
        turns = self._turns[self.device]
        if len(turns) < positions:
            while len(turns) < positions:
                block = torch.arange(len(turns), len(turns) + ROPE_BLOCK, device=self.device)
                angles = block[:, None].float() * self._inverse_frequencies
                turns = torch.cat([turns, torch.stack([angles.cos(), angles.sin()], dim=-1) * self._rope_scale])
            self._turns = {each: turns.to(each) for each in self._turns}
        return self._turns[device]


def join(model: Any, ranks: int) -> None:
    """Join a Llama-shaped model's matrices, as `joined`, with room for adapters of so many ranks in all; its modules
    keep views of them."""
    model.joined = JoinedModel(model, [model.device], model.dtype, ranks=ranks, share=True)


def has_kernels(model: Any) -> bool:
    """Whether the GPU's kernels know a Llama-shaped model's heads."""
    dim: int = model.model.layers[0].self_attn.head_dim
    return 16 <= dim <= 256 and dim & (dim - 1) == 0


def linear_layers(model: Any) -> Iterator[Any]:
    """A Llama-shaped model's linear layers, in the order of `JoinedModel.slots`."""
    for layer in model.model.layers:
        yield from itertools.chain(*_groups(layer.self_attn, layer.mlp))


def low_rank_factors(linear: Any) -> tuple[Tensor, Tensor, float] | None:
    """A, B and s of the adapter that is active on a linear layer; None where there is none."""
    if not is_adapted(linear) or linear.disable_adapters:
        return None
    [name] = linear.active_adapters
    if name not in linear.lora_A:
        return None
    low, high = (cast(Tensor, part[name].weight) for part in (linear.lora_A, linear.lora_B))
    return low, high, float(linear.scaling[name])


def _groups(attention: Any, mlp: Any) -> tuple[list[Any], ...]:
    """The linear layers of a layer by what they multiply."""
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    )


def _has_head_norms(layer: Any) -> bool:
    return hasattr(layer.self_attn, "q_norm")
