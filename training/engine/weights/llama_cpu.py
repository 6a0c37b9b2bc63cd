"""A fast forward pass for Llama-shaped models: few large matrix products and no module calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from learnloop_service.training.engine.lanes import Lanes
from learnloop_service.training.engine.weights.adapters import is_adapted
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE, MIN_ROWS, attend, causal_mask, round_up
from learnloop_service.training.engine.weights.kv_cache import KVCache, KVShape, Piece
from learnloop_service.training.engine.weights.llama_modules import LlamaModel, supports_config
from learnloop_service.training.engine.weights.rotary import RotaryTable

DECODED_TOGETHER = 32
"""Rows that are decoded in one pass. Twice as many take more than twice as long, because keys, values and the results
between layers no longer fit into the processor's caches."""


def effective_weight(linear: Any) -> torch.Tensor:
    """Return a linear layer's weight [out, in] with its LoRA adapters added as peft merges them."""
    weight: torch.Tensor = linear.weight
    if is_adapted(linear):
        for name in linear.active_adapters:
            weight = weight + linear.get_delta_weight(name)
    return weight


def _times(weight: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Multiply float32 `weight` [..., n] by the `gain` [n] of the preceding norm, so that rounding to bfloat16 happens
    only once."""
    return weight.float() * gain.float()


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: torch.Tensor
    """Joint projection [(heads + 2 * kv_heads) * head_dim, hidden] with the gain of the preceding norm multiplied
    in."""
    qkv_bias: torch.Tensor | None
    head_norm: torch.Tensor | None
    """Gains of the norms of queries and keys, [heads + kv_heads, head_dim], if the model has them."""
    out: torch.Tensor
    """Output projection [heads * head_dim, hidden], transposed as addmm requires."""
    out_bias: torch.Tensor | None
    gate_up: torch.Tensor
    """Joint projection [2 * intermediate, hidden] with the gain of the preceding norm multiplied in."""
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    """Down projection [intermediate, hidden], transposed."""
    down_bias: torch.Tensor | None


class FusedWeights:
    """A frozen copy of a model's weights with LoRA adapters merged in, laid out for sampling.

    The gains of the norms and the scale of the attention are multiplied into the weights. Queries and keys have the two
    halves of each head interleaved, so that the rotary embedding is one complex product. This does not change
    attention, because both are permuted alike.
    """

    supports_packing = False
    pad_to_multiple_of = MIN_ROWS
    exact_attention = True

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether this forward pass supports the model's family and configuration."""
        if isinstance(model, LlamaModel):
            return True
        if not supports_config(type(model).__name__, model.config):
            return False
        return not (is_adapted(model.model.embed_tokens) or is_adapted(model.lm_head))

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype, lanes: Lanes) -> None:
        config, body = model.config, model.model
        first = body.layers[0].self_attn
        self._lanes = lanes
        self.prefilled_together = lanes.count
        self._heads: int = config.num_attention_heads
        self._scale: float = first.scaling
        self._counted = torch.arange(0, device=device)
        self._norm_eps = torch.tensor(config.rms_norm_eps, dtype=torch.float32, device=device)
        self.kv = KVShape(config.num_hidden_layers, config.num_key_value_heads, first.head_dim, dtype, device)
        self.context: int = config.max_position_embeddings
        self.vocab_size: int = model.lm_head.weight.shape[0]
        self.parameters: int = model.num_parameters()

        self._embedding = self._copy(body.embed_tokens.weight)
        self._head = self._copy(_times(model.lm_head.weight, body.norm.weight))
        self._layers = [self._layer(layer) for layer in body.layers]
        self._turns = RotaryTable(body.rotary_emb.inv_freq, float(body.rotary_emb.attention_scaling), device)

    def matrices(self) -> Sequence[torch.Tensor]:
        """One of each shape of the matrices [out, in] that tokens are multiplied by."""
        layer = self._layers[0]
        every = (layer.qkv, layer.out.t(), layer.gate_up, layer.down.t(), self._head)
        return tuple({tuple(matrix.shape): matrix for matrix in every}.values())

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self.kv.device, self.kv.dtype, copy=True)

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp, copy = layer.self_attn, layer.mlp, self._copy
        heads, kv_heads = self._heads, self.kv.kv_heads
        interleave = torch.arange(self.kv.head_dim).view(2, -1).t().reshape(-1)

        def permuted(tensor: torch.Tensor, count: int) -> torch.Tensor:
            return tensor.view(count, self.kv.head_dim, *tensor.shape[1:])[:, interleave].reshape(tensor.shape)

        def join(parts: list[torch.Tensor]) -> torch.Tensor:
            return copy(torch.cat(parts))

        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (effective_weight(projection) for projection in projections)
        biases = [projection.bias for projection in projections]
        norm, scale = None, self._scale
        if hasattr(attention, "q_norm"):
            query_norm, key_norm = (part.weight[interleave] for part in (attention.q_norm, attention.k_norm))
            norm = join([query_norm.expand(heads, -1), key_norm.expand(kv_heads, -1)])
            norm[:heads] *= scale
            scale = 1.0  # the norm would undo it in the projection
        qkv = torch.cat([permuted(query, heads).float() * scale, permuted(key, kv_heads), value])
        gate_up = torch.cat([effective_weight(mlp.gate_proj), effective_weight(mlp.up_proj)])
        return _Layer(
            qkv=copy(_times(qkv, layer.input_layernorm.weight)),
            qkv_bias=None
            if biases[0] is None
            else join([permuted(biases[0], heads) * scale, permuted(biases[1], kv_heads), biases[2]]),
            head_norm=norm,
            out=copy(effective_weight(attention.o_proj)).t(),
            out_bias=None if attention.o_proj.bias is None else copy(attention.o_proj.bias),
            gate_up=copy(_times(gate_up, layer.post_attention_layernorm.weight)),
            gate_up_bias=None if mlp.gate_proj.bias is None else join([mlp.gate_proj.bias, mlp.up_proj.bias]),
            down=copy(effective_weight(mlp.down_proj)).t(),
            down_bias=None if mlp.down_proj.bias is None else copy(mlp.down_proj.bias),
        )

    def prefill(self, cache: KVCache, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of each piece into its row."""
        self._turns(cache.length + MIN_ROWS)  # grows with the first call, which lanes must not make at the same time

        def prefill(piece: Piece) -> None:
            self._prefill(cache, piece.row, piece.start, torch.from_numpy(piece.ids).to(self.kv.device))

        list(self._lanes.map(prefill, pieces))

    @torch.inference_mode()
    def _prefill(self, cache: KVCache, row: int, start: int, ids: torch.Tensor) -> None:
        """Write the keys and values of `ids` ([n], int64) from position `start` on.

        This needs memory for the scores [heads, n, start + n], so long prompts should be given in pieces, which give
        the same bits.
        """
        count, (kv_heads, head_dim) = len(ids), (self.kv.kv_heads, self.kv.head_dim)
        group = self._heads // kv_heads
        padded = max(count, MIN_ROWS)
        span = min(round_up(start + padded, KEY_MULTIPLE), cache.length)
        positions = torch.arange(start, start + padded, device=ids.device)
        rope = self._turns(cache.length + MIN_ROWS)[start : start + padded]
        # The query rows of one key head are ordered (head in group, token), so that one mask serves the group.
        mask = causal_mask(positions, span, self.kv.dtype).repeat(group, 1)
        hidden = F.embedding(F.pad(ids, (0, padded - count)), self._embedding)
        for index, (layer, (keys, values)) in enumerate(zip(self._layers, cache.layers, strict=True)):
            joint = self._project(layer, hidden, rope)
            key, value = joint[:count, self._heads :].view(count, 2, kv_heads, head_dim).unbind(1)
            keys[row, :, :, start : start + count] = key.permute(1, 2, 0)
            values[row, :, start : start + count] = value.transpose(0, 1)
            if index + 1 == len(self._layers):
                return  # the last layer's output is only needed for log-probabilities
            query = joint[:, : self._heads].transpose(0, 1).reshape(kv_heads, group * padded, head_dim)
            mixed = attend(query, keys[row, :, :, :span], values[row, :, :span], mask)
            mixed = mixed.view(self._heads, padded, head_dim).transpose(0, 1).reshape(padded, -1)
            hidden = self._finish(layer, hidden, mixed)

    def decode(self, cache: KVCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Decode one token for each of the first M rows. Return float32 logits [M, vocab] after `ids` ([M]) at
        `positions` ([M]).

        M is a multiple of MIN_ROWS; `span` is a multiple of KEY_MULTIPLE above the positions that matter. Rows that are
        not decoded now can hold anything; they are written at their position too.
        """
        size = min(round_up(-(-len(ids) // self._lanes.count), MIN_ROWS), DECODED_TOGETHER)
        parts = [slice(start, min(start + size, len(ids))) for start in range(0, len(ids), size)]
        # Both grow with the first call, which lanes must not make at the same time.
        self._turns(cache.length)
        self._numbers(size * self.kv.kv_heads * self.kv.head_dim)

        def decode(part: slice) -> torch.Tensor:
            return self._decode(cache, part, ids[part], positions[part], span)

        return torch.cat(list(self._lanes.map(decode, parts)))

    @torch.inference_mode()
    def _decode(
        self, cache: KVCache, part: slice, ids: torch.Tensor, positions: torch.Tensor, span: int
    ) -> torch.Tensor:
        """Decode the rows of a part of the batch."""
        rows, (kv_heads, head_dim) = len(ids), (self.kv.kv_heads, self.kv.head_dim)
        group, pairs, first = self._heads // kv_heads, rows * kv_heads, part.start * kv_heads
        rope = self._turns(cache.length)[positions]
        mask = causal_mask(positions, span, self.kv.dtype)[:, None].expand(rows, kv_heads, span).reshape(pairs, 1, span)
        value_places = (self._numbers(pairs).view(rows, -1) * cache.length + positions[:, None]).view(-1)
        key_places = (self._numbers(pairs * head_dim).view(rows, -1) * cache.length + positions[:, None]).view(-1)
        # Attention needs 4 query rows for each key head, and is faster with them. Surplus rows stay zero.
        hidden = F.embedding(ids, self._embedding)
        query = hidden.new_zeros((rows, kv_heads, max(group, 4), head_dim))
        group_queries = query[:, :, :group]
        query = query.view(pairs, -1, head_dim)
        for layer, pair in zip(self._layers, cache.pairs, strict=True):
            keys, values = (tensor[first : first + pairs] for tensor in pair)
            joint = self._project(layer, hidden, rope)
            group_queries.copy_(joint[:, : self._heads].view(group_queries.shape))
            key, value = joint[:, self._heads :].view(rows, 2, kv_heads, head_dim).unbind(1)
            keys.view(-1).index_copy_(0, key_places, key.reshape(-1))
            values.view(-1, head_dim).index_copy_(0, value_places, value.reshape(-1, head_dim))
            mixed = attend(query, keys[:, :, :span], values[:, :span], mask)
            hidden = self._finish(layer, hidden, mixed[:, :group].reshape(rows, -1))
        return F.linear(self._normed(hidden), self._head).float()

    def _project(self, layer: _Layer, hidden: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """Return queries and keys, both rotated by `rope` ([n, 1, D/2]), and values, as [n, heads + 2 * kv_heads,
        head_dim]."""
        joint = F.linear(self._normed(hidden), layer.qkv, layer.qkv_bias).view(len(hidden), -1, self.kv.head_dim)
        turned = joint[:, : self._heads + self.kv.kv_heads]
        if layer.head_norm is not None:
            turned.mul_(self._inverse_norm(turned)).mul_(layer.head_norm)
        if turned.dtype == torch.float32:
            torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2)).mul_(rope)
        else:
            pairs = torch.view_as_complex(turned.float().view(*turned.shape[:2], -1, 2))
            turned.copy_(torch.view_as_real(pairs * rope).flatten(-2))
        return joint

    def _finish(self, layer: _Layer, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [n, hidden] from the attention's [n, heads * D]."""
        hidden = torch.addmm(hidden, mixed, layer.out)
        if layer.out_bias is not None:
            hidden += layer.out_bias
        gate, up = F.linear(self._normed(hidden), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.down)
        if layer.down_bias is not None:
            hidden += layer.down_bias
        return hidden

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply RMSNorm (Zhang and Sennrich 2019) without its gain, which is in the weights that follow."""
        return hidden * self._inverse_norm(hidden)

    def _inverse_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return 1 / sqrt(mean(x²) + eps) over the last dimension, [..., 1], summed in float32."""
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        return torch.addcmul(self._norm_eps, norm, norm, value=1 / hidden.shape[-1]).rsqrt_().to(hidden.dtype)

    def _numbers(self, count: int) -> torch.Tensor:
        """Return 0, 1, ... count - 1."""
        if len(self._counted) < count:
            self._counted = torch.arange(count, device=self.kv.device)
        return self._counted[:count]
