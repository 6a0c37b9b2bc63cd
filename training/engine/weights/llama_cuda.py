"""The forward pass of Llama-shaped models on a GPU: packed prefill, and a decode step that is one CUDA graph."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from training.engine.weights.kv_cache import Piece
from training.engine.weights.llama_cpu import FusedWeights, _Layer
from training.engine.weights.paged_cache import PAGE, PagedCache
from training.engine.weights.triton_kernels import add_norm, decode_attention, rotate_and_store, silu_mul
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


class CudaWeights(FusedWeights):
    """Fused weights in bfloat16 on a GPU; what passes from layer to layer, and the logits, are float32.

    Unlike on a CPU, a sample's last bits depend on what shares its batch.
    """

    supports_packing = True
    pad_to_multiple_of = 8
    """One graph for each multiple of it."""

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether the forward pass knows the model's shape, and the kernels its heads."""
        if not FusedWeights.supports(model):
            return False
        dim: int = model.model.layers[0].self_attn.head_dim
        return 16 <= dim <= 256 and dim & (dim - 1) == 0

    def __init__(self, model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(model, device, dtype)
        self._eps = float(self._norm_eps)
        self._captured: weakref.WeakKeyDictionary[PagedCache, dict[int, _Step]] = weakref.WeakKeyDictionary()

    @torch.inference_mode()
    def prefill(self, cache: PagedCache, pieces: Sequence[Piece]) -> None:  # type: ignore[override]
        """Write the keys and values of all pieces into their rows, in one pass without padding."""
        device = self.kv.device
        ids = torch.from_numpy(np.concatenate([piece.ids for piece in pieces])).to(device)
        positions, places, past = _layout(cache, pieces)
        segments = Segments.of(
            [len(piece.ids) for piece in pieces], [piece.start + len(piece.ids) for piece in pieces], device
        )
        own = all(piece.start == 0 for piece in pieces)
        positions, places, past = positions.to(device), places.to(device), past.to(device)
        turns = self._turns(cache.length)
        hidden, change = F.embedding(ids, self._embedding).float(), None
        for index, (layer, (keys, values)) in enumerate(zip(self._layers, cache.layers, strict=True)):
            joint = self._joint(layer, add_norm(hidden, change, self._eps))
            rotate_and_store(joint, layer.head_norm, turns, positions, places, keys, values, self._eps)
            if index + 1 == len(self._layers):
                return  # the last layer's output would only serve log-probabilities
            query, key, value = torch.split(joint, [self._heads, self.kv.kv_heads, self.kv.kv_heads], dim=1)
            if not own:
                key, value = keys[past], values[past]
            mixed = varlen_attention(query, key, value, segments, scale=1.0)
            change = self._rest(layer, hidden, mixed.flatten(1))

    @torch.inference_mode()
    def decode(  # type: ignore[override]
        self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, span: int
    ) -> torch.Tensor:
        """One token for each of the first M rows: float32 logits [M, vocab] after `ids` ([M]) at `positions` ([M]).

        A row whose position is -1 is left alone, its logits mean nothing. They are
        overwritten by the next call with as many rows. `span` is not needed: each row reads its own tokens.
        """
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
        turns = self._turns(cache.length)
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
        tables, stand = cache.tables[: len(ids)], positions.clamp(min=0)
        pages = tables.gather(1, (stand // PAGE)[:, None])[:, 0].long()
        places = torch.where(positions < 0, 0, pages * PAGE + stand % PAGE)
        hidden, change = F.embedding(ids, self._embedding).float(), None
        for layer, (keys, values) in zip(self._layers, cache.layers, strict=True):
            joint = self._joint(layer, add_norm(hidden, change, self._eps))
            rotate_and_store(
                joint,
                layer.head_norm,
                turns,
                stand,
                places,
                keys,
                values,
                self._eps,
            )
            mixed = decode_attention(joint[:, : self._heads], keys, values, positions, tables)
            change = self._rest(layer, hidden, mixed)
        return torch.mm(add_norm(hidden, change, self._eps), self._head.t(), out_dtype=torch.float32)

    def _joint(self, layer: _Layer, normed: torch.Tensor) -> torch.Tensor:
        return F.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, self.kv.head_dim)

    def _rest(self, layer: _Layer, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Add the attention's output to `hidden` and return what the MLP adds to it."""
        normed = add_norm(hidden, F.linear(mixed, layer.out.t(), layer.out_bias), self._eps)
        gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return F.linear(silu_mul(gate, up), layer.down.t(), layer.down_bias)

    def _turns(self, positions: int) -> torch.Tensor:
        """Cosine and sine [at least `positions`, D/2, 2]."""
        return torch.view_as_real(self._rope_table(positions))[:, 0]


def _layout(cache: PagedCache, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where each new token stands in its sequence [n] and in the cache [n], and the places of all keys [K]."""
    positions = [np.arange(piece.start, piece.start + len(piece.ids)) for piece in pieces]
    past = [cache.places(piece.row, 0, piece.start + len(piece.ids)) for piece in pieces]
    places = [all_places[piece.start :] for piece, all_places in zip(pieces, past, strict=True)]
    return tuple(torch.from_numpy(np.concatenate(parts)) for parts in (positions, places, past))  # type: ignore[return-value]
