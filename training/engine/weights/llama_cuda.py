"""The forward pass of Llama-shaped models on a GPU: packed prefill, and a decode step that is one CUDA graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from training.engine.memory import uploaded
from training.engine.weights.adapters import base_of, has_adapter
from training.engine.weights.fp8_kernels import silu_mul_quantised
from training.engine.weights.fp8_products import quantised
from training.engine.weights.joined import Adapter, JoinedLayer, JoinedModel, Joint, has_kernels
from training.engine.weights.kv_cache import KVShape, Piece
from training.engine.weights.llama_cpu import FusedWeights
from training.engine.weights.paged_cache import PAGE, PagedCache
from training.engine.weights.shared_prefix import SharedPrefix
from training.engine.weights.stages import on
from training.engine.weights.triton_kernels import add_norm, decode_attention, rotate, silu_mul
from training.engine.weights.varlen_attention import Segments, varlen_attention

CAPTURE_BYTES = 1 << 30
"""Memory that the driver finds free when a graph is made: what torch keeps for later is no use to it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A stage's part of a captured decode step: fill `rows` and `inputs`, replay, read `outputs`. The graph reads
    `turns`. The first part's inputs are token ids, and the last one's outputs logits."""

    graph: torch.cuda.CUDAGraph
    rows: tuple[torch.Tensor, ...]
    """The rows' positions, and where several adapters are in place JoinedModel.ranges."""
    inputs: tuple[torch.Tensor, ...]
    turns: torch.Tensor
    outputs: tuple[torch.Tensor, ...]


class CudaWeights:
    """Weights in bfloat16 on a GPU; what passes from layer to layer, and the logits, are float32.

    A model that shares its base has its adapter beside it, and takes no memory for more: one pass serves as many
    adapters as fit into the base's columns. One that is trained whole is copied. Unlike on a CPU, a sample's last bits
    depend on what shares its batch.

    Over a base whose layers' matrices are in 8 bits, tokens are quantised before they meet them; an adapter's products,
    attention, the cache and the head stay in bfloat16.
    """

    supports_packing = True
    exact_attention = True
    pad_to_multiple_of = 8
    """One graph for each multiple of it."""

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether the forward pass knows the model's shape, and the kernels its heads."""
        return FusedWeights.supports(model) and has_kernels(model)

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Of a model, or of a peft model with its adapter."""
        base, adapted = base_of(model), has_adapter(model)
        shared: JoinedModel | None = getattr(base, "joined", None) if adapted else None
        if shared is None or (shared.embedding.device.type, shared.dtype) != (device.type, dtype):
            ranks = max(config.r for config in model.peft_config.values()) if adapted else 0
            shared = JoinedModel(base, [device], dtype, ranks=ranks, share=False)
        self._base = shared
        self._adapter = shared.adapter(base) if adapted else None
        self.kv = KVShape(len(shared.layers), shared.kv_heads, shared.head_dim, dtype, shared.device, shared.stages)
        self.context = shared.context
        self.vocab_size = len(shared.head)
        self.parameters = shared.parameters

    @property
    def batched_with(self) -> object:
        """Weights of the same base can share a batch."""
        return self._base

    def update(self, model: Any) -> None:
        """Take over the weights of a model, or a peft model's adapter, of the same shape, in place."""
        if self._adapter is not None:
            self._adapter = self._base.adapter(model.get_base_model())
        else:
            self._base.update(model)

    def matrices(self) -> Sequence[torch.Tensor]:
        """Of the matrices [out, in] that tokens are multiplied by, one of each shape."""
        every = (*(joint.matrix for joint in self._base.layers[0].joints), self._base.head)
        return tuple({tuple(matrix.shape): matrix for matrix in every}.values())

    def prefill(self, cache: PagedCache, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of all pieces into their rows, in one pass without padding."""
        self.prefill_each(cache, pieces, [self] * len(pieces))

    @torch.inference_mode()
    def prefill_each(self, cache: PagedCache, pieces: Sequence[Piece], weights: Sequence["CudaWeights"]) -> None:
        """The same with the weights of each piece, in as few passes as their adapters need."""
        adapters = [each._adapter for each in weights]
        for together in self._base.rounds(adapters):
            own = [number for number, adapter in enumerate(adapters) if adapter in together]
            self._base.place(together)
            ranges = self._base.ranges([adapters[number] for number in own])
            self._prefill(cache, [pieces[number] for number in own], ranges)

    def _prefill(self, cache: PagedCache, pieces: Sequence[Piece], ranges: torch.Tensor | None) -> None:
        """With the adapters that are in place, those of the pieces in these `ranges` (JoinedModel.ranges)."""
        base = self._base
        layout = _layout(cache, pieces)
        lengths = [len(piece.ids) for piece in pieces], [piece.start + len(piece.ids) for piece in pieces]
        if ranges is not None:
            ranges = ranges.repeat_interleave(torch.tensor(lengths[0]), dim=0)
        own = all(piece.start == 0 for piece in pieces)
        ids = uploaded(np.concatenate([piece.ids for piece in pieces]), self.kv.device)
        hidden, change = F.embedding(ids, base.embedding).float(), None
        for stage in base.stages:
            device = stage.device
            positions, places, past = (uploaded(part, device) for part in layout)
            segments, turns = Segments.of(*lengths, device), base.turns(cache.length, device)
            others = None if ranges is None else base.others(ranges.to(device))
            hidden, change = hidden.to(device), None if change is None else change.to(device)
            with on(device):
                for number in stage.layers:
                    layer, (keys, values) = self._base.layers[number], cache.layers[number]
                    joint, store = self._joint(layer, hidden, change, others), (places, keys, values)
                    rotate(joint, layer.head_gains, turns, positions, base.kv_heads, base.eps, store=store)
                    if number + 1 == len(base.layers):
                        return  # the last layer's output would only serve log-probabilities
                    query, key, value = torch.split(joint, [base.heads, base.kv_heads, base.kv_heads], dim=1)
                    if not own:
                        key, value = keys[past], values[past]
                    mixed = layer.out.room(len(ids))
                    attended = varlen_attention(query, key, value, segments, scale=base.scale)
                    layer.out.inputs(mixed).copy_(attended.flatten(1))
                    change = self._rest(layer, hidden, mixed, others)

    def decode(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """One token for each of the first M rows: float32 logits [M, vocab] after `ids` ([M]) at `positions` ([M]).

        A row whose position is -1 is left alone, its logits mean nothing. They are overwritten by the next call with
        as many rows. `span` is not needed: each row reads its own tokens.
        """
        return self.decode_each(cache, ids, positions, [self] * len(ids))

    @torch.inference_mode()
    def decode_each(
        self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, weights: Sequence["CudaWeights | None"]
    ) -> torch.Tensor:
        """The same with the weights of each row, in as few steps as their adapters need; None for one whose position is
        -1."""
        adapters = [None if each is None else each._adapter for each in weights]
        rounds = self._base.rounds(adapter for adapter, each in zip(adapters, weights, strict=True) if each)
        if len(rounds) == 1:
            [together] = rounds
            if len(together) == 1:
                self._base.use(*together)  # a step without masks is faster
            return self._step(cache, ids, positions, together, adapters)
        found = torch.zeros((len(ids), self.vocab_size), device=self.kv.device)
        for together in rounds:
            own = torch.tensor([adapter in together for adapter in adapters], device=positions.device)
            logits = self._step(cache, ids, torch.where(own, positions, -1), together, adapters)
            found = torch.where(own[:, None], logits, found)
        return found

    def _step(
        self,
        cache: PagedCache,
        ids: torch.Tensor,
        positions: torch.Tensor,
        together: set[Adapter | None],
        adapters: Sequence[Adapter | None],
    ) -> torch.Tensor:
        """With some of the rows' adapters, which fit side by side; the other rows' positions are -1."""
        self._base.place(together)
        ranges = self._base.ranges([adapter if adapter in together else None for adapter in adapters])
        rows = (positions,) if ranges is None else (positions, ranges.to(positions.device))
        steps, kind = self._base.captured.setdefault(cache, {}), (len(ids), len(rows))
        if kind not in steps:
            steps[kind] = self._capture(cache, ids, rows)
        passed: tuple[torch.Tensor, ...] = (ids,)
        for part in steps[kind]:
            device = part.rows[0].device
            _ = cache.tables(device)  # brought up to date, where the graph reads it
            with on(device):
                for mine, given in zip((*part.rows, *part.inputs), (*rows, *passed), strict=True):
                    mine.copy_(given)
                part.graph.replay()
            passed = part.outputs
        return passed[0].to(self.kv.device)

    def _capture(self, cache: PagedCache, ids: torch.Tensor, rows: tuple[torch.Tensor, ...]) -> list[_Part]:
        parts: list[_Part] = []
        passed: tuple[torch.Tensor, ...] = (ids,)
        for number, stage in enumerate(self._base.stages):
            with on(stage.device):
                inputs = tuple(each.to(stage.device, copy=True) for each in passed)
                own = tuple(each.to(stage.device, copy=True) for each in rows)
                parts.append(self._capture_part(cache, number, own, inputs))
            passed = parts[-1].outputs
        return parts

    def _capture_part(
        self, cache: PagedCache, number: int, rows: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]
    ) -> _Part:
        """Of the stage of that number."""
        device = rows[0].device
        turns = self._base.turns(cache.length, device)
        if torch.cuda.mem_get_info(device)[0] < CAPTURE_BYTES:
            torch.cuda.empty_cache()
        # Once outside a graph: kernels are compiled and libraries take their workspace. It writes what the step writes.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode(cache, number, turns, inputs, *rows)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # One after the other they may share memory, as long as any of them lives.
        pool = next((parts[number].graph.pool() for parts in self._base.captured[cache].values()), None)
        # The stream is named, because torch's own for capturing lies on whichever GPU captured first.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            outputs = self._decode(cache, number, turns, inputs, *rows)
        return _Part(graph, rows, inputs, turns, outputs)

    def _decode(
        self,
        cache: PagedCache,
        number: int,
        turns: torch.Tensor,
        inputs: tuple[torch.Tensor, ...],
        positions: torch.Tensor,
        ranges: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """One token through a stage: from ids, or the hidden states and what the layer before adds to them, to the same
        of its last layer, or to logits."""
        base, stage = self._base, self._base.stages[number]
        tables, stand = cache.tables(stage.device)[: len(positions)], positions.clamp(min=0)
        pages = tables.gather(1, (stand // PAGE)[:, None])[:, 0].long()
        places = torch.where(positions < 0, 0, pages * PAGE + stand % PAGE)
        others, prefix = None if ranges is None else base.others(ranges), SharedPrefix.of(tables, positions)
        change: torch.Tensor | None = None
        if number:
            hidden, change = inputs[0].clone(), inputs[1]  # the layers add to it in place
        else:
            hidden = F.embedding(inputs[0], base.embedding).float()
        for each in stage.layers:
            layer, (keys, values) = self._base.layers[each], cache.layers[each]
            joint = self._joint(layer, hidden, change, others)
            rotate(joint, layer.head_gains, turns, stand, base.kv_heads, base.eps, store=(places, keys, values))
            mixed = layer.out.room(len(positions))
            decode_attention(
                joint[:, : base.heads], keys, values, positions, tables, prefix, base.scale, layer.out.inputs(mixed)
            )
            change = self._rest(layer, hidden, mixed, others)
        if number + 1 < len(base.stages):
            assert change is not None
            return hidden, change
        last = torch.empty_like(hidden, dtype=base.dtype)
        add_norm(hidden, change, base.gain, base.eps, last)
        return (torch.mm(last, base.head.t(), out_dtype=torch.float32),)

    def _joint(
        self, layer: JoinedLayer, hidden: torch.Tensor, change: torch.Tensor | None, others: torch.Tensor | None
    ) -> torch.Tensor:
        """Queries, keys and values [n, heads + 2 * kv_heads, D] before rotation, once `change` is added to `hidden`.
        Here and below `others` is JoinedModel.others, where several adapters are in place."""
        joint = self._normed_product(layer.qkv, hidden, change, layer.first_gain, others)
        return joint.view(len(hidden), -1, self.kv.head_dim)

    def _rest(
        self, layer: JoinedLayer, hidden: torch.Tensor, mixed: torch.Tensor, others: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the attention's output to `hidden` and return what the MLP adds to it, maybe in parts; `mixed` is a room
        of `out`'s."""
        tokens = quantised(layer.out.inputs(mixed)) if layer.out.in_fp8 else None
        change = layer.out.product(mixed, tokens, others=others, parts=True)
        gate, up = self._normed_product(layer.gate_up, hidden, change, layer.second_gain, others).chunk(2, dim=-1)
        room, tokens = layer.down.room(len(hidden)), layer.down.tokens_in_fp8(len(hidden))
        if tokens:
            silu_mul_quantised(gate, up, layer.down.inputs(room), tokens)
        else:
            silu_mul(gate, up, layer.down.inputs(room))
        return layer.down.product(room, tokens, others=others, parts=True)

    def _normed_product(
        self,
        joint: Joint,
        hidden: torch.Tensor,
        change: torch.Tensor | None,
        gain: torch.Tensor,
        others: torch.Tensor | None,
    ) -> torch.Tensor:
        """The joint's outputs for the norm of `hidden`, once `change` is added to it."""
        room, tokens = joint.room(len(hidden)), joint.tokens_in_fp8(len(hidden))
        add_norm(hidden, change, gain, self._base.eps, joint.inputs(room), tokens)
        return joint.product(room, tokens, others=others)


def _layout(cache: PagedCache, pieces: Sequence[Piece]) -> tuple[npt.NDArray[np.int64], ...]:
    """Where each new token stands in its sequence [n] and in the cache [n], and the places of all keys [K]."""
    positions = [np.arange(piece.start, piece.start + len(piece.ids)) for piece in pieces]
    past = [cache.places(piece.row, 0, piece.start + len(piece.ids)) for piece in pieces]
    places = [all_places[piece.start :] for piece, all_places in zip(pieces, past, strict=True)]
    return tuple(np.concatenate(parts) for parts in (positions, places, past))
