"""The forward pass of Llama-shaped models on a GPU: packed prefill, and a decode step that is one CUDA graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from learnloop_service.training.engine.memory import uploaded
from learnloop_service.training.engine.weights.adapters import base_of, has_adapter
from learnloop_service.training.engine.weights.cuda_graph import captured
from learnloop_service.training.engine.weights.fp8_kernels import silu_mul_quantised
from learnloop_service.training.engine.weights.fp8_products import quantised
from learnloop_service.training.engine.weights.joined import Adapter, JoinedLayer, JoinedModel, Joint, has_kernels
from learnloop_service.training.engine.weights.kv_cache import KVShape, Piece
from learnloop_service.training.engine.weights.llama_cpu import FusedWeights
from learnloop_service.training.engine.weights.paged_cache import PagedCache, layout, places_of
from learnloop_service.training.engine.weights.shared_prefix import SharedPrefix
from learnloop_service.training.engine.weights.stages import on
from learnloop_service.training.engine.weights.triton_kernels import add_norm, decode_attention, rotate, silu_mul
from learnloop_service.training.engine.weights.varlen_attention import Segments, varlen_attention


@dataclass(frozen=True, slots=True)
class _Part:
    """A stage's part of a captured decode step: fill `rows` and `inputs`, replay, read `outputs`. The graph reads
    `turns`. The first part's inputs are token ids, and the last one's outputs are logits."""

    graph: torch.cuda.CUDAGraph
    rows: tuple[torch.Tensor, ...]
    """The rows' positions, and JoinedModel.ranges if several adapters are in place."""
    inputs: tuple[torch.Tensor, ...]
    turns: torch.Tensor
    outputs: tuple[torch.Tensor, ...]


class CudaWeights:
    """Weights in bfloat16 on a GPU. Hidden states between layers and the logits are float32.

    A model that shares its base keeps only its adapter, and one pass serves as many adapters as fit into the base's
    columns. A fully trained model is copied. Unlike on a CPU, a sample's last bits depend on what shares its batch.

    Over a base whose layers' matrices are in 8 bits, tokens are quantised before they are multiplied by them. The
    adapter's products, attention, the cache and the head stay in bfloat16.
    """

    supports_packing = True
    prefilled_together = 1
    exact_attention = True
    pad_to_multiple_of = 8
    """Granularity of the number of rows. There is one graph per multiple."""

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether this forward pass supports the model's shape and the kernels its heads."""
        return FusedWeights.supports(model) and has_kernels(model)

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Take the weights of a model, or of a peft model with its adapter."""
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
        """The base, since weights of the same base can share a batch."""
        return self._base

    def update(self, model: Any) -> None:
        """Copy the weights of a model, or of a peft model's adapter, of the same shape, in place."""
        if self._adapter is not None:
            self._adapter = self._base.adapter(model.get_base_model())
        else:
            self._base.update(model)

    def matrices(self) -> Sequence[torch.Tensor]:
        """One of each shape of the matrices [out, in] that tokens are multiplied by."""
        every = (*(joint.matrix for joint in self._base.layers[0].joints), self._base.head)
        return tuple({tuple(matrix.shape): matrix for matrix in every}.values())

    def prefill(self, cache: PagedCache, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of all pieces into their rows in one pass without padding."""
        self.prefill_each(cache, pieces, [self] * len(pieces))

    @torch.inference_mode()
    def prefill_each(self, cache: PagedCache, pieces: Sequence[Piece], weights: Sequence["CudaWeights"]) -> None:
        """Prefill pieces with separate weights for each, in as few passes as their adapters need."""
        adapters = [of_piece._adapter for of_piece in weights]
        for together in self._base.rounds(adapters):
            numbers = [number for number, adapter in enumerate(adapters) if adapter in together]
            self._base.use_together(together)
            ranges = self._base.ranges([adapters[number] for number in numbers])
            self._prefill(cache, [pieces[number] for number in numbers], ranges)

    def _prefill(self, cache: PagedCache, pieces: Sequence[Piece], ranges: torch.Tensor | None) -> None:
        """Prefill with the adapters that are in place. `ranges` (JoinedModel.ranges) gives those of the pieces."""
        base = self._base
        placed = layout(cache, pieces)
        lengths = [len(piece.ids) for piece in pieces], [piece.start + len(piece.ids) for piece in pieces]
        if ranges is not None:
            ranges = ranges.repeat_interleave(torch.tensor(lengths[0]), dim=0)
        has_no_past = all(piece.start == 0 for piece in pieces)
        ids = uploaded(np.concatenate([piece.ids for piece in pieces]), self.kv.device)
        hidden, change = F.embedding(ids, base.embedding).float(), None
        for stage in base.stages:
            device = stage.device
            positions, places, past = (uploaded(part, device) for part in placed)
            segments, turns = Segments.of(*lengths, device), base.turns(cache.length, device)
            others = None if ranges is None else base.others(ranges.to(device))
            hidden, change = hidden.to(device), None if change is None else change.to(device)
            with on(device):
                for number in stage.layers:
                    layer, (keys, values) = self._base.layers[number], cache.layers[number]
                    joint, store = self._joint(layer, hidden, change, others), (places, keys, values)
                    rotate(joint, layer.head_gains, turns, positions, base.kv_heads, base.eps, store=store)
                    if number + 1 == len(base.layers):
                        return  # the last layer's output is only needed for log-probabilities
                    query, key, value = torch.split(joint, [base.heads, base.kv_heads, base.kv_heads], dim=1)
                    if not has_no_past:
                        key, value = keys[past], values[past]
                    mixed = layer.out.room(len(ids))
                    attended = varlen_attention(query, key, value, segments, scale=base.scale)
                    layer.out.inputs(mixed).copy_(attended.flatten(1))
                    change = self._rest(layer, hidden, mixed, others)

    def decode(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Decode one token for each of the first M rows. Return float32 logits [M, vocab] after `ids` ([M]) at
        `positions` ([M]).

        A row whose position is -1 is not touched, and its logits are meaningless. The next call with as many rows
        overwrites the logits. `span` is not needed because each row reads only its own tokens.
        """
        return self.decode_each(cache, ids, positions, [self] * len(ids))

    @torch.inference_mode()
    def decode_each(
        self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, weights: Sequence["CudaWeights | None"]
    ) -> torch.Tensor:
        """Decode with separate weights for each row, in as few steps as their adapters need. Weights are None for a row
        whose position is -1."""
        adapters = [None if of_row is None else of_row._adapter for of_row in weights]
        rounds = self._base.rounds(adapter for adapter, of_row in zip(adapters, weights, strict=True) if of_row)
        if len(rounds) == 1:
            [together] = rounds
            if len(together) == 1:
                self._base.use(*together)  # a step without masks is faster
            return self._step(cache, ids, positions, together, adapters)
        merged = torch.zeros((len(ids), self.vocab_size), device=self.kv.device)
        for together in rounds:
            in_round = torch.tensor([adapter in together for adapter in adapters], device=positions.device)
            logits = self._step(cache, ids, torch.where(in_round, positions, -1), together, adapters)
            merged = torch.where(in_round[:, None], logits, merged)
        return merged

    def _step(
        self,
        cache: PagedCache,
        ids: torch.Tensor,
        positions: torch.Tensor,
        together: set[Adapter | None],
        adapters: Sequence[Adapter | None],
    ) -> torch.Tensor:
        """Decode rows whose adapters fit side by side. The positions of the other rows are -1."""
        self._base.use_together(together)
        ranges = self._base.ranges([adapter if adapter in together else None for adapter in adapters])
        rows = (positions,) if ranges is None else (positions, ranges.to(positions.device))
        steps, kind = self._base.captured.setdefault(cache, {}), (len(ids), len(rows))
        if kind not in steps:
            steps[kind] = self._capture(cache, ids, rows)
        passed: tuple[torch.Tensor, ...] = (ids,)
        for part in steps[kind]:
            device = part.rows[0].device
            _ = cache.tables(device)  # updates the tables that the graph reads
            with on(device):
                for target, source in zip((*part.rows, *part.inputs), (*rows, *passed), strict=True):
                    target.copy_(source)
                part.graph.replay()
            passed = part.outputs
        return passed[0].to(self.kv.device)

    def _capture(self, cache: PagedCache, ids: torch.Tensor, rows: tuple[torch.Tensor, ...]) -> list[_Part]:
        parts: list[_Part] = []
        passed: tuple[torch.Tensor, ...] = (ids,)
        for number, stage in enumerate(self._base.stages):
            with on(stage.device):
                inputs = tuple(tensor.to(stage.device, copy=True) for tensor in passed)
                stage_rows = tuple(tensor.to(stage.device, copy=True) for tensor in rows)
                parts.append(self._capture_part(cache, number, stage_rows, inputs))
            passed = parts[-1].outputs
        return parts

    def _capture_part(
        self, cache: PagedCache, number: int, rows: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]
    ) -> _Part:
        """Capture the part of the stage of that number."""
        device = rows[0].device
        turns = self._base.turns(cache.length, device)
        pool = next((parts[number].graph.pool() for parts in self._base.captured[cache].values()), None)
        graph, outputs = captured(lambda: self._decode(cache, number, turns, inputs, *rows), device, pool)
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
        """Run one token through a stage. The input is ids, or hidden states with the previous layer's contribution; the
        output is the same of the stage's last layer, or logits."""
        base, stage = self._base, self._base.stages[number]
        tables, stand = cache.tables(stage.device)[: len(positions)], positions.clamp(min=0)
        places = places_of(tables, positions)
        others, prefix = None if ranges is None else base.others(ranges), SharedPrefix.of(tables, positions)
        change: torch.Tensor | None = None
        if number:
            hidden, change = inputs[0].clone(), inputs[1]  # the layers add to it in place
        else:
            hidden = F.embedding(inputs[0], base.embedding).float()
        for index in stage.layers:
            layer, (keys, values) = self._base.layers[index], cache.layers[index]
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
        """Add `change` to `hidden` and return queries, keys and values [n, heads + 2 * kv_heads, D] before rotation.
        Here and below, `others` is JoinedModel.others if several adapters are in place."""
        joint = self._normed_product(layer.qkv, hidden, change, layer.first_gain, others)
        return joint.view(len(hidden), -1, self.kv.head_dim)

    def _rest(
        self, layer: JoinedLayer, hidden: torch.Tensor, mixed: torch.Tensor, others: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the attention's output to `hidden` and return the MLP's contribution, possibly in parts. `mixed` is a
        room of the joint `out`."""
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
        """Add `change` to `hidden` and return the joint's outputs for its norm."""
        room, tokens = joint.room(len(hidden)), joint.tokens_in_fp8(len(hidden))
        add_norm(hidden, change, gain, self._base.eps, joint.inputs(room), tokens)
        return joint.product(room, tokens, others=others)
