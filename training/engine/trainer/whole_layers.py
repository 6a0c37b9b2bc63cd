"""The layers of a Llama-shaped model whose weights are all trained, on a CPU: forward and backward pass written out.

For packed batches (packed_batches.py), so what sequences begin with alike is computed once; and the last layer is
computed only where chosen tokens are predicted: elsewhere its keys and values are enough. A small model's time goes
into passes over memory and many small operations. So gains are multiplied into matrices, which autograd sees to, and a
rotation is one complex product, as for sampling (weights/llama_cpu.py); and attention is a few batched products for
each block of queries, over those keys only that the last of them sees.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from training.engine.trainer.packing import Packing
from training.engine.weights.rotary import RotaryTable

QUERY_BLOCK = 96
"""Queries that are attended for together."""
KEPT_BYTES = 1 << 28
"""Of attention's weights for the backward pass; where a batch has more, they are computed again."""


class WholeLayers:
    """The layers of a Llama-shaped model without an adapter."""

    def __init__(self, base: Any) -> None:
        """`base` is the Hugging Face model. Its weights may change, its modules may not."""
        self.recompute = False
        """Whether of each layer only the input is kept for the backward pass."""
        self._base = base
        rotary, attention, config = base.model.rotary_emb, base.model.layers[0].self_attn, base.config
        self._turns = RotaryTable(rotary.inv_freq, float(rotary.attention_scaling), base.device)
        self._shape = _Shape(
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
            attention.scaling,
            float(config.rms_norm_eps),
        )

    def __call__(self, tokens: Tensor, positions: Tensor, packing: Packing, chosen: Tensor) -> Tensor:
        """The last layer's hidden states [N, H] before the norm, at the packed places `chosen` [N]."""
        body, shape = self._base.model, self._shape
        turns = self._turns(packing.segments.longest_keys)[positions]
        needed, back = torch.unique(chosen, return_inverse=True)
        blocks = _blocks(packing, np.arange(len(tokens)))
        pairs = sum(block.pairs for block in blocks)
        keeps = 4 * pairs * shape.heads * len(body.layers) <= KEPT_BYTES
        inner = _Work(shape, turns, None, blocks, keeps, self.recompute)
        last = _Work(shape, turns, needed, _blocks(packing, needed.numpy()), keeps, self.recompute)
        hidden: Tensor = F.embedding(tokens, body.embed_tokens.weight)
        for layer in body.layers:
            work = last if layer is body.layers[-1] else inner
            hidden = cast(Tensor, _LayerFunction.apply(hidden, work, *_matrices(layer, shape.head_dim)))  # type: ignore[no-untyped-call]
        return hidden.index_select(0, back)  # the gradient of `hidden[back]` depends on the number of threads


@dataclass(frozen=True, slots=True)
class _Shape:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Of the products of queries and keys."""
    eps: float


class _Matrices(NamedTuple):
    """A layer's matrices [out, in], the gains of the norms before them multiplied in, and their biases.

    Queries and keys have the halves of each head interleaved; the gains [D] are those of their own norms.
    """

    query: Tensor
    key_value: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    query_bias: Tensor | None
    key_value_bias: Tensor | None
    out_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    query_gain: Tensor | None
    key_gain: Tensor | None


def _matrices(layer: Any, head_dim: int) -> _Matrices:
    """Of a layer's parameters, with gradient."""
    attention, mlp = layer.self_attn, layer.mlp
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    first, second = layer.input_layernorm.weight, layer.post_attention_layernorm.weight

    def interleaved(tensor: Tensor) -> Tensor:
        return torch.unflatten(tensor, 0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(tensor.shape)

    biased = query.bias is not None
    return _Matrices(
        interleaved(query.weight) * first,
        torch.cat([interleaved(key.weight), value.weight]) * first,
        attention.o_proj.weight,
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * second,
        mlp.down_proj.weight,
        interleaved(query.bias) if biased else None,
        torch.cat([interleaved(key.bias), value.bias]) if biased else None,
        attention.o_proj.bias,
        None if mlp.gate_proj.bias is None else torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]),
        mlp.down_proj.bias,
        *(interleaved(getattr(attention, n).weight) if hasattr(attention, n) else None for n in ("q_norm", "k_norm")),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries that are attended for together: which of a layer's, over the keys of which packed places.

    `mask` [queries, m] hides of the last m keys those that come after a query; all queries see the keys before.
    """

    queries: slice
    keys: tuple[slice, ...]
    mask: Tensor

    @property
    def pairs(self) -> int:
        """Of queries and keys."""
        keys: int = sum(run.stop - run.start for run in self.keys)
        return len(self.mask) * keys

    def weights(self, query: Tensor, keys: Tensor) -> Tensor:
        """Attention's, for queries and keys by key head."""
        scores = torch.bmm(query, keys.transpose(1, 2))
        if later := self.mask.shape[1]:
            torch.unflatten(scores, 1, (-1, len(self.mask)))[..., -later:] += self.mask
        return torch.softmax(scores, dim=-1)

    def gathered(self, tokens: Tensor) -> Tensor:
        """The keys or values [kv_heads, K, D] out of those of the packed tokens [n, kv_heads, D]."""
        return torch.cat([tokens[run] for run in self.keys]).transpose(0, 1)

    def scatter(self, slopes: Tensor, onto: Tensor) -> None:
        """Add the gradients of what was gathered to those of the packed tokens."""
        begin = 0
        for run in self.keys:
            end = begin + run.stop - run.start
            onto[run] += slopes[:, begin:end].transpose(0, 1)
            begin = end


def _blocks(packing: Packing, places: npt.NDArray[np.int64]) -> list[_Block]:
    """Of the queries at some packed places, in order."""
    queries, starts = packing.segments.queries.tolist(), packing.segments.keys.tolist()
    every = np.arange(queries[-1]) if packing.keys is None else packing.keys.numpy()
    blocks = []
    for (first, stop), keys in zip(itertools.pairwise(queries), itertools.pairwise(starts), strict=True):
        whole = every[slice(*keys)]
        low, high = np.searchsorted(places, (first, stop)).tolist()
        for begin in range(low, high, QUERY_BLOCK):
            own = places[begin : min(begin + QUERY_BLOCK, high)]
            seen = whole[: len(whole) - (stop - 1 - own[-1])]
            later = torch.from_numpy(np.arange(own[0] + 1, own[-1] + 1) > own[:, None])
            mask = torch.zeros(later.shape).masked_fill_(later, float("-inf"))
            blocks.append(_Block(slice(begin, begin + len(own)), _runs(seen), mask))
    return blocks


def _runs(places: npt.NDArray[np.int64]) -> tuple[slice, ...]:
    """The stretches of consecutive places."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    return tuple(slice(int(places[one]), int(places[other - 1]) + 1) for one, other in itertools.pairwise(cuts))


class _Turned(NamedTuple):
    """Kept of rotated heads [n, heads, D]: normed ones, not yet multiplied by their gain, and by what the norm did."""

    normed: Tensor
    inverse: Tensor


class _Attended(NamedTuple):
    """Kept of a block's attention, each [kv_heads, ...]; the queries of a key head lie one head after the other."""

    query: Tensor
    keys: Tensor
    values: Tensor
    weights: Tensor | None


class _Kept(NamedTuple):
    """What the backward pass of a layer needs beside its matrices."""

    normed: Tensor
    inverse: Tensor
    query: _Turned | None
    key: _Turned | None
    attended: list[_Attended]
    mixed: Tensor
    middle: Tensor
    middle_inverse: Tensor
    gate_up: Tensor
    active: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A layer's work on a batch of n packed tokens, of which r are `needed` (None: all) beside their keys and values.

    `turns` are the rotations at their positions, `blocks` those of the needed queries.
    """

    shape: _Shape
    turns: Tensor
    needed: Tensor | None
    blocks: Sequence[_Block]
    keeps_weights: bool
    recompute: bool

    def forward(self, hidden: Tensor, layer: _Matrices) -> tuple[Tensor, _Kept]:
        """The layer's output [r, H] for its input [n, H]."""
        shape = self.shape
        inverse = _inverse_norm(hidden, shape.eps)
        normed = hidden * inverse
        query = torch.unflatten(F.linear(self._at(normed), layer.query, layer.query_bias), 1, (shape.heads, -1))
        joint = torch.unflatten(F.linear(normed, layer.key_value, layer.key_value_bias), 1, (2 * shape.kv_heads, -1))
        query, turned_query = _turn(query, layer.query_gain, self._query_turns, shape.eps)
        key, turned_key = _turn(joint[:, : shape.kv_heads], layer.key_gain, self.turns, shape.eps)
        mixed, attended = self._attend(query, key, joint[:, shape.kv_heads :])
        hidden = _linear_onto(self._at(hidden), mixed, layer.out, layer.out_bias)
        middle_inverse = _inverse_norm(hidden, shape.eps)
        middle = hidden * middle_inverse
        gate_up = F.linear(middle, layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=1)
        active = F.silu(gate)
        out = _linear_onto(hidden, active * up, layer.down, layer.down_bias)
        kept = (normed, inverse, turned_query, turned_key, attended, mixed, middle, middle_inverse, gate_up, active)
        return out, _Kept(*kept)

    def backward(self, grad: Tensor, layer: _Matrices, kept: _Kept) -> tuple[Tensor, _Matrices]:
        """The gradients of the input and of the matrices from that of the output."""
        gate, up = kept.gate_up.chunk(2, dim=1)
        down, down_bias = grad.t() @ (kept.active * up), _summed(grad, layer.down_bias)
        slope = grad @ layer.down
        joint_slope = torch.empty_like(kept.gate_up)
        torch.mul(slope, kept.active, out=joint_slope[:, up.shape[1] :])
        joint_slope[:, : up.shape[1]] = torch.ops.aten.silu_backward(slope.mul_(up), gate)
        gate_up, gate_up_bias = joint_slope.t() @ kept.middle, _summed(joint_slope, layer.gate_up_bias)
        grad = _norm_backward(joint_slope @ layer.gate_up, kept.middle, kept.middle_inverse).add_(grad)
        out, out_bias = grad.t() @ kept.mixed, _summed(grad, layer.out_bias)
        query_slope, key_slope, value_slope = self._attend_backward(grad @ layer.out, kept)
        query_slope, query_gain = _turn_backward(query_slope, layer.query_gain, self._query_turns, kept.query)
        key_slope, key_gain = _turn_backward(key_slope, layer.key_gain, self.turns, kept.key)
        query_slope, joint_slope = query_slope.flatten(1), torch.cat([key_slope, value_slope], dim=1).flatten(1)
        query, query_bias = query_slope.t() @ self._at(kept.normed), _summed(query_slope, layer.query_bias)
        key_value, key_value_bias = joint_slope.t() @ kept.normed, _summed(joint_slope, layer.key_value_bias)
        slope = self._onto(joint_slope @ layer.key_value, query_slope @ layer.query)
        grad = self._onto(_norm_backward(slope, kept.normed, kept.inverse), grad)
        matrices = query, key_value, out, gate_up, down
        biases = query_bias, key_value_bias, out_bias, gate_up_bias, down_bias
        return grad, _Matrices(*matrices, *biases, query_gain, key_gain)

    @property
    def _query_turns(self) -> Tensor:
        return self._at(self.turns) * self.shape.scale

    def _at(self, tokens: Tensor) -> Tensor:
        """Of a tensor [n, ...] what is needed, [r, ...]."""
        return tokens if self.needed is None else tokens[self.needed]

    def _onto(self, tokens: Tensor, needed: Tensor) -> Tensor:
        """A tensor [n, ...], with one [r, ...] added in place where it belongs."""
        return tokens.add_(needed) if self.needed is None else tokens.index_add_(0, self.needed, needed)

    def _by_key_head(self, queries: Tensor) -> Tensor:
        """[kv_heads, heads / kv_heads * q, D] from [q, heads, D]."""
        return torch.unflatten(queries, 1, (self.shape.kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, list[_Attended]]:
        """The mixed values [r, heads * D] for queries [r, heads, D], keys and values [n, kv_heads, D]."""
        mixed, kept = torch.empty_like(query), []
        for block in self.blocks:
            own, keys, values = self._by_key_head(query[block.queries]), block.gathered(key), block.gathered(value)
            weights = block.weights(own, keys)
            self._set(mixed[block.queries], torch.bmm(weights, values))
            kept.append(_Attended(own, keys, values, weights if self.keeps_weights else None))
        return mixed.flatten(1), kept

    def _attend_backward(self, grad: Tensor, kept: _Kept) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of queries, keys and values, in their shapes, from that of the mixed values."""
        shape = self.shape
        grad = torch.unflatten(grad, 1, (shape.heads, -1))
        # A query's slopes, times its weights, summed over keys: the same over values (Dao et al. 2022).
        sums = torch.linalg.vecdot(grad, kept.mixed.view_as(grad)).unsqueeze(-1)
        query = torch.empty_like(grad)
        key, value = grad.new_zeros((2, len(kept.normed), shape.kv_heads, shape.head_dim))
        for block, (own, keys, values, found) in zip(self.blocks, kept.attended, strict=True):
            weights = block.weights(own, keys) if found is None else found
            slope = self._by_key_head(grad[block.queries])
            block.scatter(torch.bmm(weights.transpose(1, 2), slope), value)
            slope = torch.bmm(slope, values.transpose(1, 2)).sub_(self._by_key_head(sums[block.queries])).mul_(weights)
            self._set(query[block.queries], torch.bmm(slope, keys))
            block.scatter(torch.bmm(slope.transpose(1, 2), own), key)
        return query, key, value

    def _set(self, queries: Tensor, by_key_head: Tensor) -> None:
        """The inverse of `_by_key_head`, into `queries`."""
        parts = torch.unflatten(by_key_head, 1, (-1, len(queries))).permute(2, 0, 1, 3)
        torch.unflatten(queries, 1, (self.shape.kv_heads, -1)).copy_(parts)


class _LayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, work: _Work, *matrices: Tensor | None) -> Tensor:
        layer = _Matrices(*cast(Any, matrices))
        out, kept = work.forward(hidden, layer)
        ctx.work, ctx.kept = work, None if work.recompute else kept
        ctx.save_for_backward(hidden, *matrices)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *matrices = ctx.saved_tensors
        layer = _Matrices(*matrices)
        kept = ctx.kept or ctx.work.forward(hidden, layer)[1]
        ctx.kept = None
        slope, slopes = ctx.work.backward(grad.contiguous(), layer, kept)
        return slope, None, *slopes


def _inverse_norm(hidden: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x²) + eps) over the last dimension, [..., 1]."""
    norm: Tensor = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return norm.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()


def _norm_backward(grad: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    """The gradient of x from that of x * inverse, which is `normed`; in the place of `grad`."""
    share = torch.linalg.vecdot(grad, normed).unsqueeze(-1).div_(normed.shape[-1])
    return grad.addcmul_(normed, share, value=-1).mul_(inverse)


def _turn(heads: Tensor, gain: Tensor | None, turns: Tensor, eps: float) -> tuple[Tensor, _Turned | None]:
    """Heads [n, heads, D] normed, where they have a gain, and rotated by `turns` [n, 1, D / 2]."""
    kept = None
    if gain is not None:
        inverse = _inverse_norm(heads, eps)
        kept = _Turned(heads * inverse, inverse)
        heads = kept.normed * gain
    return _rotated(heads, turns), kept


def _turn_backward(
    grad: Tensor, gain: Tensor | None, turns: Tensor, kept: _Turned | None
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the heads and of the gain."""
    slope = _rotated(grad, turns.conj())
    if gain is None or kept is None:
        return slope, None
    summed = (slope * kept.normed).sum((0, 1))
    return _norm_backward(slope.mul_(gain), kept.normed, kept.inverse), summed


def _rotated(heads: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(torch.unflatten(heads, -1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


def _linear_onto(hidden: Tensor, inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.addmm(hidden, inputs, matrix.t())
    return out if bias is None else out.add_(bias)


def _summed(grad: Tensor, bias: Tensor | None) -> Tensor | None:
    """The gradient of a bias, where there is one."""
    return None if bias is None else grad.sum(0)
