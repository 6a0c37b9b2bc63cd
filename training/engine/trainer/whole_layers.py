"""The layers of a fully trained Llama-shaped model on a CPU, with forward and backward pass written out.

They work on packed batches (packed_batches.py), so the beginning that sequences share is computed once. The last layer
is computed only where chosen tokens are predicted; elsewhere its keys and values are enough. A small model's time is
spent on passes over memory and on many small operations. Therefore gains are multiplied into matrices, which autograd
handles, a rotation is one complex product as in sampling (weights/llama_cpu.py), and attention is a few batched
products for each block of queries, over only the keys that the last of them sees.
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

from learnloop_service.training.engine.trainer.packing import Packing
from learnloop_service.training.engine.weights.rotary import RotaryTable

QUERY_BLOCK = 96
"""Number of queries whose attention is computed together."""
KEPT_BYTES = 1 << 28
"""Size limit of the attention weights kept for the backward pass, in bytes. Batches with more recompute them."""


class WholeLayers:
    """The layers of a Llama-shaped model without an adapter."""

    def __init__(self, base: Any) -> None:
        """`base` is the Hugging Face model. Its weights may change, its modules may not."""
        self.recompute = False
        """Whether only each layer's input is kept for the backward pass."""
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
        """Return the last layer's hidden states [N, H] before the norm, at the packed places `chosen` [N]."""
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
        return hidden.index_select(0, back)  # The gradient of `hidden[back]` would depend on the number of threads.


@dataclass(frozen=True, slots=True)
class _Shape:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor of the products of queries and keys."""
    eps: float


class _Matrices(NamedTuple):
    """A layer's matrices [out, in], with the gains of the preceding norms multiplied in, and their biases.

    Queries and keys have the two halves of each head interleaved. The gains [D] are those of the heads' own norms.
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
    """Build a layer's matrices from its parameters, with gradient."""
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
    """Queries whose attention is computed together: which of a layer's queries, and over the keys of which packed
    places.

    `mask` [queries, m] hides those of the last m keys that come after a query. All queries see the keys before.
    """

    queries: slice
    keys: tuple[slice, ...]
    mask: Tensor

    @property
    def pairs(self) -> int:
        """Number of pairs of queries and keys."""
        keys: int = sum(run.stop - run.start for run in self.keys)
        return len(self.mask) * keys

    def weights(self, query: Tensor, keys: Tensor) -> Tensor:
        """Compute the attention weights of queries and keys, grouped by key head."""
        scores = torch.bmm(query, keys.transpose(1, 2))
        if later := self.mask.shape[1]:
            torch.unflatten(scores, 1, (-1, len(self.mask)))[..., -later:] += self.mask
        return torch.softmax(scores, dim=-1)

    def gathered(self, tokens: Tensor) -> Tensor:
        """Gather the keys or values [kv_heads, K, D] from those of the packed tokens [n, kv_heads, D]."""
        return torch.cat([tokens[run] for run in self.keys]).transpose(0, 1)

    def scatter(self, slopes: Tensor, onto: Tensor) -> None:
        """Add the gradients of gathered keys or values to those of the packed tokens."""
        begin = 0
        for run in self.keys:
            end = begin + run.stop - run.start
            onto[run] += slopes[:, begin:end].transpose(0, 1)
            begin = end


def _blocks(packing: Packing, places: npt.NDArray[np.int64]) -> list[_Block]:
    """Cut the queries at the given packed places into blocks, in order."""
    queries, starts = packing.segments.queries.tolist(), packing.segments.keys.tolist()
    every = np.arange(queries[-1]) if packing.keys is None else packing.keys.numpy()
    blocks = []
    for (first, stop), keys in zip(itertools.pairwise(queries), itertools.pairwise(starts), strict=True):
        whole = every[slice(*keys)]
        low, high = np.searchsorted(places, (first, stop)).tolist()
        for begin in range(low, high, QUERY_BLOCK):
            queried = places[begin : min(begin + QUERY_BLOCK, high)]
            visible = whole[: len(whole) - (stop - 1 - queried[-1])]
            later = torch.from_numpy(np.arange(queried[0] + 1, queried[-1] + 1) > queried[:, None])
            mask = torch.zeros(later.shape).masked_fill_(later, float("-inf"))
            blocks.append(_Block(slice(begin, begin + len(queried)), _runs(visible), mask))
    return blocks


def _runs(places: npt.NDArray[np.int64]) -> tuple[slice, ...]:
    """Group places into runs of consecutive ones."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    return tuple(slice(int(places[one]), int(places[other - 1]) + 1) for one, other in itertools.pairwise(cuts))


class _Rotated(NamedTuple):
    """Tensors kept of rotated heads [n, heads, D]: the normed heads before multiplication by their gain, and the norm's
    factors."""

    normed: Tensor
    inverse: Tensor


class _Attended(NamedTuple):
    """Tensors kept of a block's attention, each [kv_heads, ...]. The queries of a key head are ordered head by head."""

    query: Tensor
    keys: Tensor
    values: Tensor
    weights: Tensor | None


class _Activations(NamedTuple):
    """Tensors that the backward pass of a layer needs in addition to its matrices."""

    normed: Tensor
    inverse: Tensor
    query: _Rotated | None
    key: _Rotated | None
    attended: list[_Attended]
    mixed: Tensor
    middle: Tensor
    middle_inverse: Tensor
    gate_up: Tensor
    active: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A layer's work on a batch of n packed tokens. Full outputs are computed for the r tokens `needed` (None means
    all), and keys and values for every token.

    `turns` are the rotations at the tokens' positions, and `blocks` those of the needed queries.
    """

    shape: _Shape
    turns: Tensor
    needed: Tensor | None
    blocks: Sequence[_Block]
    keeps_weights: bool
    recompute: bool

    def forward(self, hidden: Tensor, layer: _Matrices) -> tuple[Tensor, _Activations]:
        """Return the layer's output [r, H] for its input [n, H]."""
        shape = self.shape
        inverse = _inverse_norm(hidden, shape.eps)
        normed = hidden * inverse
        query = torch.unflatten(F.linear(self._at(normed), layer.query, layer.query_bias), 1, (shape.heads, -1))
        joint = torch.unflatten(F.linear(normed, layer.key_value, layer.key_value_bias), 1, (2 * shape.kv_heads, -1))
        query, turned_query = _rotate(query, layer.query_gain, self._query_turns, shape.eps)
        key, turned_key = _rotate(joint[:, : shape.kv_heads], layer.key_gain, self.turns, shape.eps)
        mixed, attended = self._attend(query, key, joint[:, shape.kv_heads :])
        hidden = _linear_onto(self._at(hidden), mixed, layer.out, layer.out_bias)
        middle_inverse = _inverse_norm(hidden, shape.eps)
        middle = hidden * middle_inverse
        gate_up = F.linear(middle, layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=1)
        active = F.silu(gate)
        out = _linear_onto(hidden, active * up, layer.down, layer.down_bias)
        activations = (
            normed,
            inverse,
            turned_query,
            turned_key,
            attended,
            mixed,
            middle,
            middle_inverse,
            gate_up,
            active,
        )
        return out, _Activations(*activations)

    def backward(self, grad: Tensor, layer: _Matrices, activations: _Activations) -> tuple[Tensor, _Matrices]:
        """Return the gradients of the input and of the matrices from that of the output."""
        gate, up = activations.gate_up.chunk(2, dim=1)
        down, down_bias = grad.t() @ (activations.active * up), _bias_gradient(grad, layer.down_bias)
        slope = grad @ layer.down
        joint_slope = torch.empty_like(activations.gate_up)
        torch.mul(slope, activations.active, out=joint_slope[:, up.shape[1] :])
        joint_slope[:, : up.shape[1]] = torch.ops.aten.silu_backward(slope.mul_(up), gate)
        gate_up, gate_up_bias = joint_slope.t() @ activations.middle, _bias_gradient(joint_slope, layer.gate_up_bias)
        grad = _norm_backward(joint_slope @ layer.gate_up, activations.middle, activations.middle_inverse).add_(grad)
        out, out_bias = grad.t() @ activations.mixed, _bias_gradient(grad, layer.out_bias)
        query_slope, key_slope, value_slope = self._attend_backward(grad @ layer.out, activations)
        query_slope, query_gain = _rotate_backward(query_slope, layer.query_gain, self._query_turns, activations.query)
        key_slope, key_gain = _rotate_backward(key_slope, layer.key_gain, self.turns, activations.key)
        query_slope, joint_slope = query_slope.flatten(1), torch.cat([key_slope, value_slope], dim=1).flatten(1)
        query, query_bias = (
            query_slope.t() @ self._at(activations.normed),
            _bias_gradient(query_slope, layer.query_bias),
        )
        key_value, key_value_bias = (
            joint_slope.t() @ activations.normed,
            _bias_gradient(joint_slope, layer.key_value_bias),
        )
        slope = self._onto(joint_slope @ layer.key_value, query_slope @ layer.query)
        grad = self._onto(_norm_backward(slope, activations.normed, activations.inverse), grad)
        matrices = query, key_value, out, gate_up, down
        biases = query_bias, key_value_bias, out_bias, gate_up_bias, down_bias
        return grad, _Matrices(*matrices, *biases, query_gain, key_gain)

    @property
    def _query_turns(self) -> Tensor:
        return self._at(self.turns) * self.shape.scale

    def _at(self, tokens: Tensor) -> Tensor:
        """Select the needed rows [r, ...] of a tensor [n, ...]."""
        return tokens if self.needed is None else tokens[self.needed]

    def _onto(self, tokens: Tensor, needed: Tensor) -> Tensor:
        """Add `needed` [r, ...] in place to its rows of a tensor [n, ...]."""
        return tokens.add_(needed) if self.needed is None else tokens.index_add_(0, self.needed, needed)

    def _by_key_head(self, queries: Tensor) -> Tensor:
        """Reorder queries [q, heads, D] to [kv_heads, heads / kv_heads * q, D]."""
        return torch.unflatten(queries, 1, (self.shape.kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, list[_Attended]]:
        """Return the mixed values [r, heads * D] for queries [r, heads, D] and keys and values [n, kv_heads, D]."""
        mixed, attended = torch.empty_like(query), []
        for block in self.blocks:
            queries, keys, values = self._by_key_head(query[block.queries]), block.gathered(key), block.gathered(value)
            weights = block.weights(queries, keys)
            self._set(mixed[block.queries], torch.bmm(weights, values))
            attended.append(_Attended(queries, keys, values, weights if self.keeps_weights else None))
        return mixed.flatten(1), attended

    def _attend_backward(self, grad: Tensor, activations: _Activations) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values, in their shapes, from that of the mixed values."""
        shape = self.shape
        grad = torch.unflatten(grad, 1, (shape.heads, -1))
        # The sum over keys of a query's gradients times its weights equals the same sum over values (Dao et al. 2022).
        sums = torch.linalg.vecdot(grad, activations.mixed.view_as(grad)).unsqueeze(-1)
        query = torch.empty_like(grad)
        key, value = grad.new_zeros((2, len(activations.normed), shape.kv_heads, shape.head_dim))
        for block, (queries, keys, values, saved_weights) in zip(self.blocks, activations.attended, strict=True):
            weights = block.weights(queries, keys) if saved_weights is None else saved_weights
            slope = self._by_key_head(grad[block.queries])
            block.scatter(torch.bmm(weights.transpose(1, 2), slope), value)
            slope = torch.bmm(slope, values.transpose(1, 2)).sub_(self._by_key_head(sums[block.queries])).mul_(weights)
            self._set(query[block.queries], torch.bmm(slope, keys))
            block.scatter(torch.bmm(slope.transpose(1, 2), queries), key)
        return query, key, value

    def _set(self, queries: Tensor, by_key_head: Tensor) -> None:
        """Write the inverse of `_by_key_head` to `queries`."""
        parts = torch.unflatten(by_key_head, 1, (-1, len(queries))).permute(2, 0, 1, 3)
        torch.unflatten(queries, 1, (self.shape.kv_heads, -1)).copy_(parts)


class _LayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, work: _Work, *matrices: Tensor | None) -> Tensor:
        layer = _Matrices(*cast(Any, matrices))
        out, activations = work.forward(hidden, layer)
        ctx.work, ctx.activations = work, None if work.recompute else activations
        ctx.save_for_backward(hidden, *matrices)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *matrices = ctx.saved_tensors
        layer = _Matrices(*matrices)
        activations = ctx.activations or ctx.work.forward(hidden, layer)[1]
        ctx.activations = None
        slope, slopes = ctx.work.backward(grad.contiguous(), layer, activations)
        return slope, None, *slopes


def _inverse_norm(hidden: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x²) + eps) over the last dimension, [..., 1]."""
    norm: Tensor = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return norm.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()


def _norm_backward(grad: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    """Return the gradient of x from that of x * inverse, which is `normed`. Overwrites `grad`."""
    share = torch.linalg.vecdot(grad, normed).unsqueeze(-1).div_(normed.shape[-1])
    return grad.addcmul_(normed, share, value=-1).mul_(inverse)


def _rotate(heads: Tensor, gain: Tensor | None, turns: Tensor, eps: float) -> tuple[Tensor, _Rotated | None]:
    """Norm heads [n, heads, D] if they have a gain, and rotate them by `turns` [n, 1, D / 2]."""
    rotated = None
    if gain is not None:
        inverse = _inverse_norm(heads, eps)
        rotated = _Rotated(heads * inverse, inverse)
        heads = rotated.normed * gain
    return _rotated(heads, turns), rotated


def _rotate_backward(
    grad: Tensor, gain: Tensor | None, turns: Tensor, rotated: _Rotated | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the heads and of the gain."""
    slope = _rotated(grad, turns.conj())
    if gain is None or rotated is None:
        return slope, None
    summed = (slope * rotated.normed).sum((0, 1))
    return _norm_backward(slope.mul_(gain), rotated.normed, rotated.inverse), summed


def _rotated(heads: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(torch.unflatten(heads, -1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


def _linear_onto(hidden: Tensor, inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.addmm(hidden, inputs, matrix.t())
    return out if bias is None else out.add_(bias)


def _bias_gradient(grad: Tensor, bias: Tensor | None) -> Tensor | None:
    """Return the gradient of a bias, or None if there is none."""
    return None if bias is None else grad.sum(0)
