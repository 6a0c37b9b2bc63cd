"""The weights that training changes: a causal LM, in full or through a LoRA adapter, and its optimizer."""

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import structlog
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from learnloop_service.training.engine.lanes import Lanes
from learnloop_service.training.engine.memory import free_bytes, is_out_of_memory, release_reserved
from learnloop_service.training.engine.registry.checkpoints import optimizer_files, optimizer_part
from learnloop_service.training.engine.trainer.joined_layers import JoinedLayers
from learnloop_service.training.engine.trainer.optimizer import Optimizer
from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.padded_batches import Batch, padded_batches
from learnloop_service.training.engine.trainer.peers import Alone, Peers
from learnloop_service.training.engine.trainer.whole_layers import WholeLayers
from learnloop_service.training.engine.weights import llama_modules
from learnloop_service.training.engine.weights.adapters import base_of
from learnloop_service.training.engine.weights.joined import has_kernels, join
from learnloop_service.training.engine.weights.llama_cpu import FusedWeights
from learnloop_service.training.engine.weights.llama_modules import LlamaModel
from learnloop_service.training.engine.weights.tensor_file import write_tensors
from learnloop_service.training.protocol.model_facts import MeasuredToken
from learnloop_service.training.tuning import Tuning

if TYPE_CHECKING:  # importing them takes long, and the models of LlamaModel do without
    from transformers import PreTrainedModel

    from learnloop_service.training.engine.trainer.pretrained import SharedBases

_OBJECTIVE = "objective"
"""Key of Optimizer.objective in the metadata of the optimizer's files."""
_OPTIMIZER_PART_BYTES = 1 << 30
_OPTIMIZER_THREADS = 4
"""Parts of the optimizer's state that are written at the same time."""

log = structlog.get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Model: TypeAlias = "PreTrainedModel | LlamaModel"


class Policy:
    """A model with gradients, to be used from one thread."""

    def __init__(self, model: Model, tuning: Tuning, base_directory: Callable[[], Path]) -> None:
        """`base_directory` holds the base model, which is loaded only if needed."""
        self.model = model
        self.tuning = tuning
        self.optimizer = Optimizer((n, p) for n, p in model.named_parameters() if p.requires_grad)
        self.peers: Peers = Alone()
        """The trainers that take steps together with this one."""
        self.lanes = Lanes()
        """Threads that compute batches at the same time."""
        self.measured: tuple[MeasuredToken, ...] = ()
        """Tokens at which the last step was measured (trust_region.py)."""
        self._base_directory = base_directory
        self._reference: Model | None = None
        self.recomputing = False
        """Whether the backward pass recomputes activations because they do not fit into memory."""
        self._most_tokens: int | None = None
        """Number of tokens that memory was found to hold in one pass; None before it ran out."""
        self._layers: JoinedLayers | None = None
        self._whole: WholeLayers | None = None
        self._packed = False
        if FusedWeights.supports(self.base) and self._trains_packed(tuning):
            self.pack()

    @property
    def device(self) -> torch.device:
        """The device of the weights, or that of the first stage."""
        return self.devices[0]

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of the weights; more than one only for a model in stages."""
        return self._layers.devices if self._layers else (self.model.device,)

    @property
    def context(self) -> int:
        """The model's context length in tokens."""
        config: Any = self.model.config
        return int((config if isinstance(self.model, LlamaModel) else config.get_text_config()).max_position_embeddings)

    @property
    def base(self) -> Any:
        """The model whose layers are trained, with the adapter's layers in it."""
        return base_of(self.model)

    def _trains_packed(self, tuning: Tuning) -> bool:
        """Whether a Llama-shaped model is trained packed. An adapter on a CPU is not, because there it is merged for
        sampling."""
        if self.device.type == "cuda":
            return tuning.mode == "full" or has_kernels(self.base)
        return tuning.mode == "full"

    def pack(self) -> None:
        """Train on packed sequences from now on, for Llama-shaped models. An adapter is trained through its base's
        joined matrices; a full model through lean modules on a GPU and through WholeLayers elsewhere."""
        self._packed = True
        if self.tuning.mode == "lora":
            base: Any = self.base
            if not hasattr(base, "joined"):
                join(base, self.tuning.rank)
            self._layers = base.joined_layers = JoinedLayers(base)
        elif self.device.type != "cuda":
            self._whole = _whole(self.base)
        else:
            from learnloop_service.training.engine.trainer.pretrained import pack_modules

            pack_modules(self.base)

    def in_batches(
        self,
        ids: Sequence[Sequence[int]],
        chosen: Sequence[Sequence[int]],
        most_tokens: int | None,
        work: Callable[[Sequence[Batch]], Generator[T, None, R]],
    ) -> Generator[T, None, R]:
        """Run `work` on the sequences, with the positions `chosen` of each, in batches of at most `most_tokens` tokens.

        None takes as many as memory should hold. If memory runs out all the same, gradients are discarded and the work
        restarts with smaller batches, and eventually with recomputed activations.
        """
        longest = max(map(len, ids), default=0)
        if self._layers and not self.recomputing and longest > self._layers.tokens_that_fit():
            # one sequence's activations do not fit, and finding that out by trial takes a minute at 30,000 tokens
            self._recompute()
        while True:
            tokens = self.batch_tokens(most_tokens)
            try:
                return (yield from work(list(self._cut(ids, chosen, tokens))))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._give_way(tokens, longest):
                    raise
            self.optimizer.discard()
            gc.collect()
            if self.device.type == "cuda":
                release_reserved()

    def score(
        self, ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], most_tokens: int | None, progress: T
    ) -> Generator[T, None, list[tuple[Tensor, dict[int, Tensor]]]]:
        """Return for each batch the exact log-probabilities [N] of the tokens at the positions `chosen`, and their
        parts by sequence number; see `in_batches`. Yields `progress` after every batch."""

        def logprobs(batch: Batch) -> Tensor:
            with torch.no_grad():
                return batch.logprobs(self.model)[0]

        def passes(batches: Sequence[Batch]) -> Generator[T, None, list[tuple[Tensor, dict[int, Tensor]]]]:
            scored = []
            for batch, values in zip(batches, self.lanes.map(logprobs, batches), strict=True):
                parts = torch.split(values, [len(chosen[number]) for number in batch.members])
                scored.append((values, dict(zip(batch.members, parts, strict=True))))
                yield progress
            return scored

        return (yield from self.in_batches(ids, chosen, most_tokens, passes))

    def _cut(self, ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], tokens: int) -> Iterator[Batch]:
        if self._layers:
            return packed_batches(ids, chosen, tokens, self.device, stems=True, last=self.devices[-1])
        cut: Callable[..., Iterator[Batch]] = packed_batches if self._packed else padded_batches
        return cut(ids, chosen, tokens, self.device)

    def use_lanes(self, lanes: Lanes) -> None:
        """Compute batches at the same time where passes share no state, which is with WholeLayers. The operations of
        one of their batches are too small for several threads to share them well."""
        self.lanes = lanes if self._whole else Lanes()

    def backward(
        self, batches: Sequence[Batch], loss_of: Callable[[Batch, Tensor, Tensor], tuple[Tensor, R]]
    ) -> Iterator[R]:
        """Add the gradient of each batch's loss to that of the parameters, in order, so that the sum has the same bits
        with any number of lanes.

        `loss_of` gets a batch with the result of Batch.logprobs, and returns the loss and what is yielded.
        """
        parameters = list(self.optimizer.parameters)

        def gradients(batch: Batch) -> tuple[Sequence[Tensor | None], R]:
            loss, result = loss_of(batch, *batch.logprobs(self.model))
            return torch.autograd.grad(loss, parameters, allow_unused=True), result

        if self.lanes.count > 1:
            for slopes, result in self.lanes.map(gradients, batches):
                self.optimizer.add(slopes)
                yield result
            return
        for batch, (logprobs, entropy) in zip(batches, self.logprobs(batches), strict=True):
            loss, result = loss_of(batch, logprobs, entropy)
            loss.backward()  # type: ignore[no-untyped-call]
            yield result

    def logprobs(self, batches: Sequence[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the result of Batch.logprobs for each batch. With a model in stages, each batch begins before its
        predecessor has finished, so that the first and last GPU work concurrently."""
        ahead = 1 if self._layers and self._layers.in_stages else 0
        begun: deque[Callable[[], tuple[Tensor, Tensor]]] = deque()
        for batch in batches:
            begun.append(batch.begin(self.model))
            if len(begun) > ahead:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()

    def batch_tokens(self, most: int | None) -> int:
        """Number of tokens of one pass for a requested `most`, where None means as many as memory should hold."""
        requested = most or self._affordable_tokens()
        return min(requested, self._most_tokens or requested)

    def _give_way(self, tokens: int, longest: int) -> bool:
        """Reduce the batch size after memory ran out with batches of `tokens`. Return False if it cannot be reduced
        further."""
        if tokens > longest:
            self._most_tokens = max(tokens // 2, longest)
        elif not self.recomputing and (self._layers or self._whole or self.base.supports_gradient_checkpointing):
            self._recompute()
        else:
            return False
        log.warning("training out of memory", batch_tokens=self._most_tokens, recompute=self.recomputing)
        return True

    def _recompute(self) -> None:
        """Keep only each layer's input for the backward pass (Chen et al. 2016)."""
        self.recomputing = True
        if written_out := self._layers or self._whole:
            written_out.recompute = True
            return
        self.base.gradient_checkpointing_enable({"use_reentrant": False})
        for module in self.base.modules():
            if hasattr(module, "gradient_checkpointing"):
                # transformers recomputes only in training mode; the model has no dropout that this would enable
                module.training = True

    def _affordable_tokens(self) -> int:
        """Tokens in one pass: on a CPU as many as its caches hold (measured for the tiny base: 512 to 2,048 are equally
        fast, 8,192 take 14% longer), on a GPU as many activations of a Llama-shaped model as its free memory should
        hold."""
        if self.device.type != "cuda":
            return 2048
        if self._layers:
            return int(min(max(0.85 * self._layers.tokens_that_fit(), 1024), 32_768))
        config = self.model.config
        width = 6 * config.hidden_size + 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
        token_bytes = 1.3 * config.num_hidden_layers * width * 4
        return int(min(max(0.8 * free_bytes(self.device) / token_bytes, 1024), 32_768))

    @contextmanager
    def reference(self) -> Iterator[Model]:
        """Yield the base model, for the KL penalty."""
        if self.tuning.mode == "lora":
            with cast(Any, self.model).disable_adapter():
                yield self.model
            return
        if self._reference is None:
            self._reference = self._load_reference(self._base_directory())
        yield self._reference

    def _load_reference(self, directory: Path) -> Model:
        if isinstance(self.model, LlamaModel):
            reference = load_checkpoint(directory, directory, self.tuning, self.device)
            _whole(reference)
            return reference
        from learnloop_service.training.engine.trainer import pretrained

        model = pretrained.load_model(directory, self.device, torch.float32)
        if self._whole:
            _whole(model)
        elif self._packed:
            pretrained.pack_modules(model)
        return model

    def save(self, directory: Path) -> dict[str, str]:
        """Write weights and config (in peft's layout for an adapter) and the optimizer's state. Return the SHA-256 of
        the files that were hashed while they were written, by name."""
        metadata = {_OBJECTIVE: self.optimizer.objective} if self.optimizer.objective else None
        with ThreadPoolExecutor(_OPTIMIZER_THREADS, "optimizer") as beside:
            parts = {
                optimizer_part(number): beside.submit(write_tensors, part, directory / optimizer_part(number), metadata)
                for number, part in enumerate(_parts(self.optimizer.tensors()))
            }
            hashed = self._save_model(directory)
        return hashed | {name: written.result() for name, written in parts.items()}

    def _save_model(self, directory: Path) -> dict[str, str]:
        if isinstance(self.model, LlamaModel):
            return self.model.save(directory)
        if self.tuning.mode == "lora":
            from learnloop_service.training.engine.trainer.pretrained import save_adapter

            return save_adapter(self.model, directory)
        from learnloop_service.training.engine.trainer.pretrained import save_whole

        return save_whole(self.model, directory)


def _parts(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in parts of about _OPTIMIZER_PART_BYTES, because a file is hashed by one core."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        part[name] = tensor
        size += tensor.nbytes
        if size >= _OPTIMIZER_PART_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _whole(model: Any) -> WholeLayers:
    """Route packed batches through a new WholeLayers of the model and return it."""
    model.whole_layers = layers = WholeLayers(model)
    return layers


def load_policy(
    directory: Path,
    base_directory: Callable[[], Path],
    tuning: Tuning,
    device: torch.device,
    bases: "SharedBases | None" = None,
) -> Policy:
    """Load the policy of a checkpoint directory, with its optimizer state if it has one. Raises BadModelDirectory."""
    base = base_directory() if tuning.mode == "lora" else directory
    policy = Policy(load_checkpoint(directory, base, tuning, device, bases, trainable=True), tuning, base_directory)
    if parts := optimizer_files(directory):
        with safe_open(parts[0], "pt") as file:
            objective = (file.metadata() or {}).get(_OBJECTIVE)
        policy.optimizer.load({name: tensor for part in parts for name, tensor in load_file(part).items()}, objective)
    return policy


def load_checkpoint(
    directory: Path,
    base_directory: Path,
    tuning: Tuning,
    device: torch.device,
    bases: "SharedBases | None" = None,
    *,
    trainable: bool = False,
) -> Model:
    """Load the model of a checkpoint directory; an adapter is put on its base from `bases`. Raises
    BadModelDirectory."""
    if tuning.mode == "full" and device.type == "cpu" and (model := llama_modules.read(directory)) is not None:
        return model
    from learnloop_service.training.engine.trainer.pretrained import load_pretrained  # imports transformers and peft

    return load_pretrained(directory, base_directory, tuning, device, bases, trainable=trainable)
