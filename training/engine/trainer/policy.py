"""The weights that training changes: a causal LM, whole or through a LoRA adapter, and its optimizer."""

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import structlog
import torch
from safetensors.torch import load_file
from torch import Tensor

from training.engine.memory import free_bytes, is_out_of_memory
from training.engine.registry.checkpoints import OPTIMIZER_FILE
from training.engine.registry.tuning import Tuning
from training.engine.trainer.joined_layers import JoinedLayers
from training.engine.trainer.optimizer import Optimizer
from training.engine.trainer.packed_batches import packed_batches
from training.engine.trainer.padded_batches import Batch, padded_batches
from training.engine.trainer.peers import Alone, Peers
from training.engine.trainer.whole_layers import WholeLayers
from training.engine.weights import llama_modules
from training.engine.weights.adapters import base_of
from training.engine.weights.joined import has_kernels, join
from training.engine.weights.llama_cpu import FusedWeights
from training.engine.weights.llama_modules import LlamaModel
from training.engine.weights.tensor_file import write_tensors

if TYPE_CHECKING:  # importing them takes long, and the models of LlamaModel do without
    from transformers import PreTrainedModel

    from training.engine.trainer.pretrained import SharedBases

log = structlog.get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Model: TypeAlias = "PreTrainedModel | LlamaModel"


class Policy:
    """A model with gradients. Use from one thread."""

    def __init__(self, model: Model, tuning: Tuning, base_directory: Callable[[], Path]) -> None:
        """`base_directory` finds the base model, if ever it is needed."""
        self.model = model
        self.tuning = tuning
        self.optimizer = Optimizer((n, p) for n, p in model.named_parameters() if p.requires_grad)
        self.peers: Peers = Alone()
        """Who takes its steps together."""
        self._base_directory = base_directory
        self._reference: Model | None = None
        self.recomputing = False
        """Whether the backward pass computes activations again, because memory does not hold them."""
        self._most_tokens: int | None = None
        """What memory was found to hold in one pass."""
        self._layers: JoinedLayers | None = None
        self._whole: WholeLayers | None = None
        self._packed = False
        if FusedWeights.supports(self.base) and self._trains_packed(tuning):
            self.pack()

    @property
    def device(self) -> torch.device:
        """Where the weights are; of a model in stages the first."""
        return self.devices[0]

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Those that it lies on: several only for a model in stages."""
        return self._layers.devices if self._layers else (self.model.device,)

    @property
    def context(self) -> int:
        """The most tokens that the model can attend to."""
        return int(self.model.config.max_position_embeddings)

    @property
    def base(self) -> Any:
        """The model whose layers are trained, with the adapter's in place."""
        return base_of(self.model)

    def _trains_packed(self, tuning: Tuning) -> bool:
        """Whether a model of Llama's shape is. An adapter on a CPU is not: there it is merged to be sampled."""
        if self.device.type == "cuda":
            return tuning.mode == "full" or has_kernels(self.base)
        return tuning.mode == "full"

    def pack(self) -> None:
        """Train on packed sequences from now on; for models of Llama's shape. An adapter is trained through its base's
        joined matrices, a whole model through lean modules on a GPU and through WholeLayers elsewhere."""
        self._packed = True
        if self.tuning.mode == "lora":
            base: Any = self.base
            if not hasattr(base, "joined"):
                join(base, self.tuning.rank)
            self._layers = base.joined_layers = JoinedLayers(base)
        elif self.device.type != "cuda":
            self._whole = _whole(self.base)
        else:
            from training.engine.trainer.pretrained import pack_modules

            pack_modules(self.base)

    def in_batches(
        self,
        ids: Sequence[Sequence[int]],
        chosen: Sequence[Sequence[int]],
        most_tokens: int | None,
        work: Callable[[Sequence[Batch]], Generator[T, None, R]],
    ) -> Generator[T, None, R]:
        """Give `work` the sequences, with the positions `chosen` of each, in batches of at most `most_tokens` tokens.

        None takes what memory should hold. When it does not, gradients are forgotten and the work is begun again with
        smaller batches, and at last with activations that the backward pass computes again.
        """
        longest = max(map(len, ids), default=0)
        if self._layers and not self.recomputing and longest > self._layers.tokens_that_fit():
            self._recompute()  # one sequence's activations do not fit, and trying that takes a minute at 30,000 tokens
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
                torch.cuda.empty_cache()

    def _cut(self, ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], tokens: int) -> Iterator[Batch]:
        if self._layers:
            return packed_batches(ids, chosen, tokens, self.device, stems=True, last=self.devices[-1])
        cut: Callable[..., Iterator[Batch]] = packed_batches if self._packed else padded_batches
        return cut(ids, chosen, tokens, self.device)

    def logprobs(self, batches: Sequence[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """What Batch.logprobs gives, batch after batch. Of a model in stages each batch is begun before the one before
        it is finished, so that the first GPU works while the last one does."""
        ahead = 1 if self._layers and self._layers.in_stages else 0
        begun: deque[Callable[[], tuple[Tensor, Tensor]]] = deque()
        for batch in batches:
            begun.append(batch.begin(self.model))
            if len(begun) > ahead:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()

    def batch_tokens(self, most: int | None) -> int:
        """Tokens of one pass, if `most` of them (None: what memory should hold) were asked for."""
        asked = most or self._affordable_tokens()
        return min(asked, self._most_tokens or asked)

    def _give_way(self, tokens: int, longest: int) -> bool:
        """After memory ran out with batches of `tokens`: take less from now on; False if there is no less."""
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
                module.training = True  # transformers recomputes only then; there is no dropout that it would turn on

    def _affordable_tokens(self) -> int:
        """Tokens in one pass: on a CPU what its caches hold (measured for the tiny base: 512 to 2,048 alike, 8,192
        +14%), on a GPU what its free memory should hold of a Llama-shaped model's activations."""
        if self.device.type != "cuda":
            return 2048
        if self._layers:
            return int(min(max(0.85 * self._layers.tokens_that_fit(), 1024), 32_768))
        config = self.model.config
        width = 6 * config.hidden_size + 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
        each = 1.3 * config.num_hidden_layers * width * 4
        return int(min(max(0.8 * free_bytes(self.device) / each, 1024), 32_768))

    @contextmanager
    def reference(self) -> Iterator[Model]:
        """The base model, for the KL penalty."""
        if self.tuning.mode == "lora":
            with cast(Any, self.model).disable_adapter():
                yield self.model
            return
        if self._reference is None:
            self._reference = self._load_reference(self._base_directory())
        yield self._reference

    def _load_reference(self, directory: Path) -> Model:
        if isinstance(self.model, LlamaModel):
            found = load_checkpoint(directory, directory, self.tuning, self.device)
            _whole(found)
            return found
        from training.engine.trainer import pretrained

        model = pretrained.load_model(directory, self.device, torch.float32)
        if self._whole:
            _whole(model)
        elif self._packed:
            pretrained.pack_modules(model)
        return model

    def save(self, directory: Path) -> None:
        """Write weights and config (of an adapter: in peft's layout) and the optimizer's state."""
        with ThreadPoolExecutor(1, "optimizer") as beside:
            written = beside.submit(self._save_optimizer, directory)
            self._save_model(directory)
        written.result()

    def _save_optimizer(self, directory: Path) -> None:
        if tensors := self.optimizer.tensors():
            write_tensors(tensors, directory / OPTIMIZER_FILE)

    def _save_model(self, directory: Path) -> None:
        if isinstance(self.model, LlamaModel):
            self.model.save(directory)
        elif self.tuning.mode == "lora":
            from training.engine.trainer.pretrained import save_adapter

            save_adapter(self.model, directory)
        else:
            self.model.save_pretrained(directory)


def _whole(model: Any) -> WholeLayers:
    """Have packed batches go through the model's WholeLayers, which are returned."""
    model.whole_layers = layers = WholeLayers(model)
    return layers


def load_policy(
    directory: Path,
    base_directory: Callable[[], Path],
    tuning: Tuning,
    device: torch.device,
    bases: "SharedBases | None" = None,
) -> Policy:
    """The policy of a checkpoint directory, with its optimizer's state if it has one. Raises BadModelDirectory."""
    base = base_directory() if tuning.mode == "lora" else directory
    policy = Policy(load_checkpoint(directory, base, tuning, device, bases, trainable=True), tuning, base_directory)
    state = directory / OPTIMIZER_FILE
    if state.is_file():
        policy.optimizer.load(load_file(state))
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
    """The model of a checkpoint directory, an adapter's over its base in `bases`. Raises BadModelDirectory."""
    if tuning.mode == "full" and device.type == "cpu" and (model := llama_modules.read(directory)) is not None:
        return model
    from training.engine.trainer.pretrained import load_pretrained  # it imports transformers and peft

    return load_pretrained(directory, base_directory, tuning, device, bases, trainable=trainable)
