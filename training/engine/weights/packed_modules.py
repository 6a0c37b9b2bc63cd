"""The forward pass of other Hugging Face models on a GPU: their own modules over the pages of the engine's cache, with
packed prefill, and a decode step that is one CUDA graph if the modules allow it."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import structlog
import torch
from transformers import AttentionInterface

from learnloop_service.training.engine.memory import is_out_of_memory, uploaded
from learnloop_service.training.engine.weights.any_model import ModuleWeights, PassCache, merged
from learnloop_service.training.engine.weights.cuda_graph import captured
from learnloop_service.training.engine.weights.joined import HEAD_DIMS
from learnloop_service.training.engine.weights.kv_cache import KVShape, Piece
from learnloop_service.training.engine.weights.paged_cache import PagedCache, layout, places_of
from learnloop_service.training.engine.weights.shared_prefix import SharedPrefix
from learnloop_service.training.engine.weights.triton_kernels import decode_attention
from learnloop_service.training.engine.weights.varlen_attention import Segments, varlen_attention

ATTENTION = "learnloop_pages"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """A captured decode step: fill `ids` and `positions`, replay, read `logits`."""

    graph: torch.cuda.CUDAGraph
    ids: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor


class PackedModules:
    """A frozen copy of a model on a GPU, run through its own `forward` with the engine's attention."""

    supports_packing = True
    prefilled_together = 1
    exact_attention = True
    pad_to_multiple_of = 8
    """Granularity of the number of rows. There is one graph per multiple."""

    @staticmethod
    def supports(weights: ModuleWeights) -> bool:
        """Whether the engine's attention can replace that of every layer, and the kernels support its heads."""
        kv, config = weights.kv, weights.model.config.get_text_config()
        if not weights.exact_attention or kv.layers != config.num_hidden_layers:  # others share keys and values
            return False
        return kv.dtype == torch.bfloat16 and kv.head_dim in HEAD_DIMS

    def __init__(self, weights: ModuleWeights) -> None:
        """Take over weights that are supported."""
        self._modules = weights
        self._modules.model.set_attn_implementation(ATTENTION)
        self.kv: KVShape = weights.kv
        self.context = weights.context
        self.vocab_size = weights.vocab_size
        self.parameters = weights.parameters
        self._steps: WeakKeyDictionary[PagedCache, dict[int, _Step]] = WeakKeyDictionary()
        self.captured = True
        """Whether decode steps are CUDA graphs, as far as is known."""

    def matrices(self) -> Sequence[torch.Tensor]:
        """One of each shape of the matrices [out, in] that tokens are multiplied by."""
        return self._modules.matrices()

    @torch.no_grad()
    def update(self, model: Any) -> None:
        """Copy the weights of a model, or of a peft model with its adapter, of the same shape, in place."""
        new = merged(model)
        for parameter, source in zip(self._modules.model.parameters(), new.parameters(), strict=True):
            parameter.copy_(source)

    @torch.inference_mode()
    def prefill(self, cache: PagedCache, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of all pieces into their rows in one pass without padding."""
        device = self.kv.device
        positions, places, past = (uploaded(part, device) for part in layout(cache, pieces))
        lengths = [len(piece.ids) for piece in pieces], [piece.start + len(piece.ids) for piece in pieces]
        has_no_past = all(piece.start == 0 for piece in pieces)
        pass_ = _Prefill(cache, places, None if has_no_past else past, Segments.of(*lengths, device))
        ids = uploaded(np.concatenate([piece.ids for piece in pieces]), device)
        self._forward(ids[None], positions[None], pass_)

    @torch.inference_mode()
    def decode(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Decode one token for each of the first M rows. Return float32 logits [M, vocab] after `ids` ([M]) at
        `positions` ([M]).

        A row whose position is -1 is not touched, and its logits are meaningless. `span` is not needed because each row
        reads only its own tokens.
        """
        _ = cache.tables(self.kv.device)  # updates the tables that the step reads
        step = self._step(cache, ids, positions)
        if step is None:
            return self._decode(cache, ids, positions).float()
        step.ids.copy_(ids)
        step.positions.copy_(positions)
        step.graph.replay()
        return step.logits.float()

    def _step(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor) -> _Step | None:
        """Return the captured step of as many rows, or None if the model cannot be captured."""
        steps = self._steps.setdefault(cache, {})
        if self.captured and len(ids) not in steps:
            inputs = ids.clone(), positions.clone()
            pool = next((step.graph.pool() for step in steps.values()), None)
            try:
                graph, logits = captured(lambda: self._decode(cache, *inputs), self.kv.device, pool)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                # Some modules look at values on the CPU, such as the length for a scaled rotary embedding.
                self.captured = False
                log.warning("decoding without a CUDA graph", error=str(error))
            else:
                steps[len(ids)] = _Step(graph, *inputs, logits)
        return steps.get(len(ids)) if self.captured else None

    def _decode(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        tables = cache.tables(self.kv.device)[: len(positions)]
        step = _Decode(cache, places_of(tables, positions), positions, tables, SharedPrefix.of(tables, positions))
        return self._forward(ids[:, None], positions.clamp(min=0)[:, None], step)[:, -1]

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, pass_: "_Prefill | _Decode") -> torch.Tensor:
        def mask(window: int | None) -> torch.Tensor:
            """A mask whose width tells `_attention` the window: the segments and positions say the rest."""
            return torch.empty((1, 1, 1, window or 0), dtype=self.kv.dtype, device=self.kv.device)

        token = _PASS.set(pass_)
        try:
            return self._modules.forward(ids, positions, pass_, mask)
        finally:
            _PASS.reset(token)


class _Prefill(PassCache):
    """A pass over packed pieces, as one sequence of all their tokens. `attend` returns attention's output [B, n, heads,
    D] for queries [B, heads, n, D] of the layer updated last."""

    def __init__(self, cache: PagedCache, places: torch.Tensor, past: torch.Tensor | None, segments: Segments) -> None:
        """Tokens are stored at `places` ([n]). Their keys are at `past` ([K]), or their own if that is None."""
        super().__init__()
        self._cache = cache
        self._places = places
        self._past = past
        self._segments = segments
        self._seen: tuple[torch.Tensor, torch.Tensor]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        stored = self._cache.layers[layer_idx]
        for part, states in zip(stored, new, strict=True):
            part[self._places] = states
        keys, values = new if self._past is None else (part[self._past] for part in stored)
        self._seen = keys, values
        return key_states, value_states

    def attend(self, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        packed = query[0].transpose(0, 1)
        return varlen_attention(packed, *self._seen, self._segments, scale=scale, window=window)[None]


class _Decode(PassCache):
    """A pass over one new token of each row, with the same `attend`."""

    def __init__(
        self,
        cache: PagedCache,
        places: torch.Tensor,
        positions: torch.Tensor,
        tables: torch.Tensor,
        prefix: SharedPrefix,
    ) -> None:
        super().__init__()
        self._layer = -1
        self._cache = cache
        self._places = places
        self._positions = positions
        self._tables = tables
        self._prefix = prefix

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._layer = layer_idx
        for part, new in zip(self._cache.layers[layer_idx], (key_states, value_states), strict=True):
            part[self._places] = new[:, :, 0]
        return key_states, value_states

    def attend(self, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        rows, heads, _, dim = query.shape
        mixed = torch.empty((rows, heads * dim), dtype=query.dtype, device=query.device)
        pages = self._cache.layers[self._layer]
        decode_attention(
            query[:, :, 0].contiguous(), *pages, self._positions, self._tables, self._prefix, scale, mixed, window
        )
        return mixed.view(rows, 1, heads, dim)


_PASS: ContextVar[_Prefill | _Decode] = ContextVar("forward pass")


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' interface, over what the pass has in the cache."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _PASS.get().attend(query, scale, attention_mask.shape[-1] or None), None


AttentionInterface.register(ATTENTION, _attention)
