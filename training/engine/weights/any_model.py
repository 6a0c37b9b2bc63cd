"""The forward pass of all other Hugging Face causal language models, through their own modules, over the engine's cache
rows."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AttentionInterface, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from learnloop_service.environment.first_line import first_line
from learnloop_service.training.bases.files import fault_of_layers
from learnloop_service.training.engine.memory import is_out_of_memory
from learnloop_service.training.engine.registry.model_record import BadModelDirectory
from learnloop_service.training.engine.weights.adapters import has_adapter
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE, MIN_ROWS, attend, causal_mask, round_up
from learnloop_service.training.engine.weights.kv_cache import KVCache, KVShape, Piece

ATTENTION = "learnloop_rows"


class UnsupportedModel(BadModelDirectory):
    """The engine cannot sample from the model because of the kind of its cache or attention. The message is a clause
    about the model."""


class ModuleWeights:
    """A frozen copy of a model, run through its own `forward`.

    Attention is the engine's if the model accepts a custom one and uses no extras (soft caps, sinks), so that samples
    do not depend on their neighbours. Otherwise it is the model's own "eager" one, which does not guarantee this.
    """

    supports_packing = False
    prefilled_together = 1
    pad_to_multiple_of = MIN_ROWS

    def __init__(self, model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
        self.model: Any
        self.model = copy.deepcopy(model)
        self.model.to(device=device, dtype=dtype).eval().requires_grad_(False)
        config = self.model.config.get_text_config()
        layer_types = _layer_types(config)
        if not isinstance(context := getattr(config, "max_position_embeddings", None), int):
            raise UnsupportedModel("its config names no context length (max_position_embeddings)")
        self.context: int = context
        self.vocab_size: int = self.model.get_output_embeddings().weight.shape[0]
        self.parameters: int = self.model.num_parameters()
        self.kv = self._probe(device, dtype)
        window = getattr(config, "sliding_window", None)
        self._windows: dict[str, int | None] = {"": window}
        if layer_types:
            self._windows = {kind: window if kind == "sliding_attention" else None for kind in layer_types}
        plain = not any(getattr(config, name, None) for name in ("attn_logit_softcapping", "attn_logit_softcap"))
        sinks = any(name.endswith("sinks") for name, _ in self.model.named_parameters())
        self.exact_attention: bool = plain and not sinks and self.model._can_set_attn_implementation()
        self.model.set_attn_implementation(ATTENTION if self.exact_attention else "eager")

    def matrices(self) -> Sequence[torch.Tensor]:
        """One of each shape of the matrices [out, in] that tokens are multiplied by."""
        linear = (module for module in self.model.modules() if isinstance(module, torch.nn.Linear))
        return tuple({tuple(module.weight.shape): module.weight for module in linear}.values())

    def _probe(self, device: torch.device, dtype: torch.dtype) -> KVShape:
        """Find out the cache's shape by running one token, because configurations name it in too many ways."""
        cache = DynamicCache()
        try:
            with torch.inference_mode():
                self.model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=device), past_key_values=cache)
        except Exception as error:  # models of unknown kinds can raise anything
            if device.type == "meta" or is_out_of_memory(error):
                raise
            what = f"{type(error).__name__}: {first_line(error)}"
            raise UnsupportedModel(f"it cannot compute one token with a cache of keys and values ({what})") from error
        states = [getattr(layer, part, None) for layer in cache.layers for part in ("keys", "values")]
        shapes = {state.shape if isinstance(state, torch.Tensor) else None for state in states}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is None:
            raise UnsupportedModel("its layers do not all keep keys and values, or not of one shape")
        return KVShape(len(cache.layers), shape[1], shape[3], dtype, self.model.device)

    def prefill(self, cache: KVCache, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of each piece into its row."""
        for piece in pieces:
            self._prefill(cache, piece.row, piece.start, torch.from_numpy(piece.ids).to(self.kv.device))

    @torch.inference_mode()
    def _prefill(self, cache: KVCache, row: int, start: int, ids: torch.Tensor) -> None:
        padded = max(len(ids), MIN_ROWS)
        span = min(round_up(start + padded, KEY_MULTIPLE), cache.length)
        # Padding tokens get the last real position, because position tables have no row beyond the context.
        positions = torch.arange(start, start + padded, device=ids.device).clamp(max=start + len(ids) - 1)
        window = _Window(cache, slice(row, row + 1), span, start=start, count=len(ids))
        self._forward(torch.nn.functional.pad(ids, (0, padded - len(ids)))[None], positions[None], window)

    @torch.inference_mode()
    def decode(self, cache: KVCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Decode one token for each of the first M rows. Return float32 logits [M, vocab] after `ids` ([M]) at
        `positions` ([M])."""
        window = _Window(cache, slice(0, len(ids)), span, positions=positions)
        return self._forward(ids[:, None], positions[:, None], window)[:, -1].float()

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, window: "_Window") -> torch.Tensor:
        def mask(width: int | None) -> torch.Tensor:
            visible = causal_mask(positions.reshape(-1), window.span, self.kv.dtype, width)
            return visible.view(len(ids), 1, ids.shape[1], window.span)

        return self.forward(ids, positions, window, mask)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, past: Cache, mask: Callable[[int | None], torch.Tensor]
    ) -> torch.Tensor:
        """Return the logits [B, 1, vocab] after the last of `ids` ([B, n]) at `positions` ([B, n]). `mask` returns the
        attention mask of layers that see a window of this number of last tokens, or all if it is None."""
        masks = {kind: mask(width) for kind, width in self._windows.items()}
        logits: torch.Tensor = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks.get("", masks),
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits


def merged(model: Any) -> Any:
    """Return a model without an adapter as it is, or a copy of the base of a peft model with its adapter merged in."""
    return copy.deepcopy(model).merge_and_unload() if has_adapter(model) else model


def _layer_types(config: PreTrainedConfig) -> set[str]:
    """Return the kinds of a model's layers, or nothing if its config does not name them. Raises UnsupportedModel."""
    kinds = getattr(config, "layer_types", None) or []
    if (fault := fault_of_layers(kinds)) is not None:
        raise UnsupportedModel(fault)
    return {*kinds} - {"attention"}


class PassCache(Cache):
    """What the layers of one forward pass read and write in place of a cache. No token precedes those of the pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class _Window(PassCache):
    """The model layers' view of the engine's cache in one forward pass: some rows, up to `span` tokens.

    It covers either one row and `count` new tokens from `start` on (prefill), or one new token per row at `positions`
    (decode).
    """

    def __init__(
        self,
        cache: KVCache,
        rows: slice,
        span: int,
        *,
        start: int = 0,
        count: int = 0,
        positions: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.span = span
        self._cache = cache
        self._rows = rows
        self._start = start
        self._count = count
        self._positions = positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (part[self._rows] for part in self._cache.by_head[layer_idx])
        for part, new in ((keys, key_states), (values, value_states)):
            if self._positions is None:
                part[0, :, self._start : self._start + self._count] = new[0, :, : self._count]
            else:
                part[torch.arange(len(part), device=part.device), :, self._positions] = new[:, :, 0]
        return keys[:, :, : self.span], values[:, :, : self.span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self._cache.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.span, 0


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' interface: [batch, heads, n, D] and [batch, kv_heads, T, D] give [batch, n, heads,
    D]."""
    batch, heads, count, head_dim = query.shape
    kv_heads, span = key.shape[1], key.shape[2]
    group = heads // kv_heads
    scale = head_dim**-0.5 if scaling is None else scaling
    mask = attention_mask.expand(batch, kv_heads * group, count, span).reshape(batch * kv_heads, group * count, span)
    query = (query * scale).reshape(batch * kv_heads, group * count, head_dim)
    spare = max(0, 4 - group * count)
    query = torch.nn.functional.pad(query, (0, 0, 0, spare))
    mask = torch.nn.functional.pad(mask, (0, 0, 0, spare))
    mixed = attend(
        query,
        key.transpose(-1, -2).reshape(batch * kv_heads, head_dim, span),
        value.reshape(batch * kv_heads, span, head_dim),
        mask,
    )
    mixed = mixed[:, : group * count].reshape(batch, heads, count, head_dim)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attention)
