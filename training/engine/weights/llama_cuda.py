"""The forward pass of Llama-shaped models on a GPU: packed prefill, and a decode step that is one CUDA graph."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from peft import PeftModel
from transformers import PreTrainedModel

from training.engine.weights.joined import Adapter, JoinedLayer, JoinedModel, has_kernels
from training.engine.weights.kv_cache import KVShape, Piece
from training.engine.weights.llama_cpu import FusedWeights
from training.engine.weights.paged_cache import PAGE, PagedCache
from training.engine.weights.triton_kernels import add_norm, decode_attention, rotate, silu_mul
from training.engine.weights.varlen_attention import Segments, varlen_attention

CAPTURE_BYTES = 1 << 30
"""Memory that the driver finds free when a graph is made: what torch keeps for later is no use to it."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A captured decode step: fill `ids` and `positions`, replay, read `logits`. The graph reads `turns`."""

    graph: torch.cuda.CUDAGraph
    ids: torch.Tensor
    positions: torch.Tensor
    turns: torch.Tensor
    logits: torch.Tensor


class CudaWeights:
    """Weights in bfloat16 on a GPU; what passes from layer to layer, and the logits, are float32.

    A model that shares its base has its adapter beside it, and takes no memory for more; one that is trained whole is
    copied. Unlike on a CPU, a sample's last bits depend on what shares its batch.
    """

    supports_packing = True
    exact_attention = True
    pad_to_multiple_of = 8
    """One graph for each multiple of it."""

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether the forward pass knows the model's shape, and the kernels its heads."""
        return FusedWeights.supports(model) and has_kernels(model)

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Of a model, or of a peft model with its adapter."""
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        adapted = isinstance(model, PeftModel)
        shared: JoinedModel | None = getattr(base, "joined", None) if adapted else None
        if shared is None or (shared.embedding.device.type, shared.dtype) != (device.type, dtype):
            ranks = max(config.r for config in model.peft_config.values()) if adapted else 0
            shared = JoinedModel(base, device, dtype, ranks=ranks, share=False)
        self._base = shared
        self._adapter = Adapter.of(base, device, dtype) if adapted else None
        self.kv = KVShape(len(shared.layers), shared.kv_heads, shared.head_dim, dtype, device)
        self.context = shared.context
        self.vocab_size = len(shared.head)
        self.parameters = shared.parameters
        self._captured: weakref.WeakKeyDictionary[PagedCache, dict[int, _Step]] = weakref.WeakKeyDictionary()

    def update(self, model: Any) -> None:
        """Take over the weights of a model, or a peft model's adapter, of the same shape, in place."""
        if self._adapter is not None:
            self._adapter = Adapter.of(model.get_base_model(), self.kv.device, self.kv.dtype)
        else:
            self._base.update(model)

    def matrices(self) -> Sequence[torch.Tensor]:
        """Of the matrices [out, in] that tokens are multiplied by, one of each shape."""
        every = (*(joint.matrix for joint in self._base.layers[0].joints), self._base.head)
        return tuple({tuple(matrix.shape): matrix for matrix in every}.values())

    @torch.inference_mode()
    def prefill(self, cache: PagedCache, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of all pieces into their rows, in one pass without padding."""
        base, device = self._base, self.kv.device
        base.use(self._adapter)
        ids = torch.from_numpy(np.concatenate([piece.ids for piece in pieces])).to(device)
        positions, places, past = (part.to(device) for part in _layout(cache, pieces))
        segments = Segments.of(
            [len(piece.ids) for piece in pieces], [piece.start + len(piece.ids) for piece in pieces], device
        )
        own = all(piece.start == 0 for piece in pieces)
        turns = base.turns(cache.length)
        hidden, change = F.embedding(ids, base.embedding).float(), None
        for index, (layer, (keys, values)) in enumerate(zip(base.layers, cache.layers, strict=True)):
            joint = self._joint(layer, hidden, change)
            store = places, keys, values
            rotate(joint, layer.head_gains, turns, positions, base.kv_heads, base.eps, store=store)
            if index + 1 == len(base.layers):
                return  # the last layer's output would only serve log-probabilities
            query, key, value = torch.split(joint, [base.heads, base.kv_heads, base.kv_heads], dim=1)
            if not own:
                key, value = keys[past], values[past]
            mixed = layer.out.room(len(ids))
            layer.out.inputs(mixed).copy_(varlen_attention(query, key, value, segments, scale=base.scale).flatten(1))
            change = self._rest(layer, hidden, mixed)

    @torch.inference_mode()
    def decode(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """One token for each of the first M rows: float32 logits [M, vocab] after `ids` ([M]) at `positions` ([M]).

        A row whose position is -1 is left alone, its logits mean nothing. They are overwritten by the next call with
        as many rows. `span` is not needed: each row reads its own tokens.
        """
        self._base.use(self._adapter)
        steps = self._captured.setdefault(cache, {})
        if len(ids) not in steps:
            steps[len(ids)] = self._capture(cache, ids, positions)
        step = steps[len(ids)]
        step.ids.copy_(ids)
        step.positions.copy_(positions)
        _ = cache.tables  # brought up to date, where the graph reads it
        step.graph.replay()
        return step.logits

    def _capture(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor) -> _Step:
        ids, positions = ids.clone(), positions.clone()
        turns = self._base.turns(cache.length)
        if torch.cuda.mem_get_info(ids.device)[0] < CAPTURE_BYTES:
            torch.cuda.empty_cache()
        # Once outside a graph: kernels are compiled and libraries take their workspace. It writes what the step writes.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode(cache, ids, positions, turns)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # One after the other they may share memory, as long as any of them lives.
        pool = next((step.graph.pool() for step in self._captured[cache].values()), None)
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            logits = self._decode(cache, ids, positions, turns)
        return _Step(graph, ids, positions, turns, logits)

    def _decode(
        self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, turns: torch.Tensor
    ) -> torch.Tensor:
        base, tables, stand = self._base, cache.tables[: len(ids)], positions.clamp(min=0)
        pages = tables.gather(1, (stand // PAGE)[:, None])[:, 0].long()
        places = torch.where(positions < 0, 0, pages * PAGE + stand % PAGE)
        hidden, change = F.embedding(ids, base.embedding).float(), None
        for layer, (keys, values) in zip(base.layers, cache.layers, strict=True):
            joint = self._joint(layer, hidden, change)
            rotate(joint, layer.head_gains, turns, stand, base.kv_heads, base.eps, store=(places, keys, values))
            mixed = layer.out.room(len(ids))
            decode_attention(
                joint[:, : base.heads], keys, values, positions, tables, base.scale, layer.out.inputs(mixed)
            )
            change = self._rest(layer, hidden, mixed)
        last = torch.empty_like(hidden, dtype=base.dtype)
        add_norm(hidden, change, base.gain, base.eps, last)
        return torch.mm(last, base.head.t(), out_dtype=torch.float32)

    def _joint(self, layer: JoinedLayer, hidden: torch.Tensor, change: torch.Tensor | None) -> torch.Tensor:
        """Queries, keys and values [n, heads + 2 * kv_heads, D] before rotation, once `change` is added to `hidden`."""
        room = layer.qkv.room(len(hidden))
        add_norm(hidden, change, layer.first_gain, self._base.eps, layer.qkv.inputs(room))
        return layer.qkv.product(room).view(len(hidden), -1, self.kv.head_dim)

    def _rest(self, layer: JoinedLayer, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Add the attention's output to `hidden` and return what the MLP adds to it; `mixed` is a room of `out`'s."""
        room = layer.gate_up.room(len(hidden))
        add_norm(hidden, layer.out.product(mixed), layer.second_gain, self._base.eps, layer.gate_up.inputs(room))
        gate, up = layer.gate_up.product(room).chunk(2, dim=-1)
        room = layer.down.room(len(hidden))
        silu_mul(gate, up, layer.down.inputs(room))
        return layer.down.product(room)


def _layout(cache: PagedCache, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where each new token stands in its sequence [n] and in the cache [n], and the places of all keys [K]."""
    positions = [np.arange(piece.start, piece.start + len(piece.ids)) for piece in pieces]
    past = [cache.places(piece.row, 0, piece.start + len(piece.ids)) for piece in pieces]
    places = [all_places[piece.start :] for piece, all_places in zip(pieces, past, strict=True)]
    return tuple(torch.from_numpy(np.concatenate(parts)) for parts in (positions, places, past))  # type: ignore[return-value]
