"""The weights that training changes: a Hugging Face causal LM, whole or through a LoRA adapter, and its optimizer."""

import copy
import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import structlog
import torch
from accelerate.hooks import remove_hook_from_module
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from training.engine.memory import free_bytes, is_out_of_memory
from training.engine.model_classes import without_compiler
from training.engine.registry.base_models import parameter_count
from training.engine.registry.checkpoints import ADAPTER_FILE, OPTIMIZER_FILE
from training.engine.registry.tuning import Tuning
from training.engine.trainer.joined_layers import JoinedLayers
from training.engine.trainer.lean_modules import make_lean
from training.engine.trainer.optimizer import Optimizer
from training.engine.trainer.packed_batches import ATTENTION, packed_batches
from training.engine.trainer.padded_batches import Batch, padded_batches
from training.engine.trainer.peers import Alone, Peers
from training.engine.trainer.whole_layers import WholeLayers
from training.engine.weights.joined import JoinedModel, has_kernels, join
from training.engine.weights.llama_cpu import FusedWeights
from training.engine.weights.stages import devices_needed, stages_of

log = structlog.get_logger(__name__)

USUAL_RANKS = 21
"""Adapters of up to so many ranks share one copy of their base: it has the same columns for all of them."""

T = TypeVar("T")
R = TypeVar("R")

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class BadModelDirectory(Exception):
    """The directory does not hold a causal language model that can be loaded."""


class Policy:
    """A model with gradients. Use from one thread."""

    def __init__(self, model: PreTrainedModel, tuning: Tuning, base_directory: Callable[[], Path]) -> None:
        """`base_directory` finds the base model, if ever it is needed."""
        self.model = model
        self.tuning = tuning
        self.optimizer = Optimizer((n, p) for n, p in model.named_parameters() if p.requires_grad)
        self.peers: Peers = Alone()
        """Who takes its steps together."""
        self._base_directory = base_directory
        self._reference: PreTrainedModel | None = None
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
    def base(self) -> PreTrainedModel:
        """The model whose layers are trained, with the adapter's in place."""
        model = self.model
        return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model

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
            self.base.set_attn_implementation(ATTENTION)
            make_lean(self.base)

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
        self.base.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
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
    def reference(self) -> Iterator[PreTrainedModel]:
        """The base model, for the KL penalty."""
        if self.tuning.mode == "lora":
            with cast(Any, self.model).disable_adapter():
                yield self.model
            return
        if self._reference is None:
            self._reference = load_model(self._base_directory(), self.device, torch.float32)
            if self._whole:
                _whole(self._reference)
            elif self._packed:
                self._reference.set_attn_implementation(ATTENTION)
                make_lean(self._reference)
        yield self._reference

    def save(self, directory: Path) -> None:
        """Write weights and config (of an adapter: in peft's layout) and the optimizer's state."""
        save = partial(self.model.save_pretrained, directory)
        if self.device.type == "cpu":
            without_compiler(save)
        else:
            save()  # a large model takes long, and what samples beside it may need the compiler
        if self.tuning.mode == "lora":
            # peft writes a model card with the base's path on this machine in it.
            (directory / "README.md").unlink(missing_ok=True)
        if tensors := self.optimizer.tensors():
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / OPTIMIZER_FILE)


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
) -> PreTrainedModel:
    """The model of a checkpoint directory, an adapter's over its base in `bases`. Raises BadModelDirectory."""
    # On a GPU only weights that are trained need float32: products are made in bfloat16, sums in float32.
    exact = device.type == "cpu" or (trainable and tuning.mode == "full")
    dtype = torch.float32 if exact else torch.bfloat16
    if tuning.mode == "full":
        return load_model(directory, device, dtype)
    base = load_model(base_directory, device, dtype) if bases is None else bases.model(base_directory, tuning)
    if (directory / ADAPTER_FILE).is_file():
        return cast(PreTrainedModel, PeftModel.from_pretrained(base, str(directory), is_trainable=trainable).eval())
    return cast(PreTrainedModel, fresh_adapter(base, tuning).eval())


class SharedBases:
    """Base models on GPUs: one copy of each, under all adapters that are loaded at the moment.

    A model that one GPU does not hold lies on as many as it needs, layers in equal parts.
    """

    def __init__(self, devices: Sequence[torch.device], parameter_bytes: int = 2) -> None:
        """`parameter_bytes`: what a parameter takes, with the copies that are made of it to be sampled."""
        self._devices = tuple(devices)
        self._parameter_bytes = parameter_bytes
        self._loaded: WeakValueDictionary[tuple[Path, int], JoinedModel] = WeakValueDictionary()

    def has(self, directory: Path, tuning: Tuning) -> bool:
        """Whether an adapter of that tuning finds its base loaded."""
        return self._key(directory, tuning) in self._loaded

    def devices(self, directory: Path) -> tuple[torch.device, ...]:
        """Those that a base takes. Raises UnknownModel."""
        needed = devices_needed(self._parameter_bytes * parameter_count(directory), self._devices)
        return needed if len(needed) == 1 or _has_stages(directory) else needed[:1]

    def model(self, directory: Path, tuning: Tuning) -> PreTrainedModel:
        """The base for an adapter of that tuning. Its weights are those of all others: none must be changed.

        Raises BadModelDirectory.
        """
        joined = self._loaded.get(self._key(directory, tuning))
        if joined is None:
            devices = self.devices(directory)
            several = len(devices) > 1
            model = load_in_stages(directory, devices) if several else load_model(directory, devices[0], torch.bfloat16)
            if not (FusedWeights.supports(model) and has_kernels(model)):
                return model
            joined = JoinedModel(model, devices, torch.bfloat16, ranks=max(tuning.rank, USUAL_RANKS), share=True)
            joined.model = model
            self._loaded[self._key(directory, tuning)] = joined
        weights = (*joined.model.parameters(), *joined.model.buffers())
        mine: Any = copy.deepcopy(joined.model, {id(tensor): tensor for tensor in weights})
        mine.joined = joined
        return cast(PreTrainedModel, mine)

    @staticmethod
    def _key(directory: Path, tuning: Tuning) -> tuple[Path, int]:
        return directory, max(tuning.rank, USUAL_RANKS)


def load_model(directory: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A causal LM from a local directory in Hugging Face layout with safetensors weights, without dropout.

    Raises BadModelDirectory.
    """
    # Its `to` is wrapped in a way that hides its arguments from the type checker.
    return cast(PreTrainedModel, cast(Any, _read(directory, dtype)).to(device).eval())


def load_in_stages(directory: Path, devices: Sequence[torch.device]) -> PreTrainedModel:
    """A Llama-shaped model in bfloat16, its layers in equal parts on the devices. Raises BadModelDirectory."""
    first, last = devices[0], devices[-1]
    places = {"model.embed_tokens": first, "model.rotary_emb": first, "model.norm": last, "lm_head": last}
    for stage in stages_of(_config(directory).num_hidden_layers, devices):
        places |= {f"model.layers.{number}": stage.device for number in stage.layers}
    model = _read(directory, torch.bfloat16, device_map=places)
    # What would move tensors between the modules: they are never called whole.
    remove_hook_from_module(model, recurse=True)
    return cast(PreTrainedModel, model.eval())


def _has_stages(directory: Path) -> bool:
    """Whether a model's layers can lie on several devices: those of Llama's shape can."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_config(directory))  # type: ignore[no-untyped-call]
    return FusedWeights.supports(model) and has_kernels(model)


def _config(directory: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _unloadable(directory, error) from error
    return config


def _read(directory: Path, dtype: torch.dtype, **options: Any) -> Any:
    read = partial(
        AutoModelForCausalLM.from_pretrained,
        directory,
        dtype=dtype,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        **options,
    )
    try:
        return without_compiler(read)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise _unloadable(directory, error) from error


def _unloadable(directory: Path, error: Exception) -> BadModelDirectory:
    return BadModelDirectory(f"{directory.name} holds no loadable causal language model: {error}")


def fresh_adapter(base: PreTrainedModel, tuning: Tuning) -> PeftModel:
    """A new adapter, the same one each time: its B matrices are zero, its A matrices random."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=tuning.rank,
        lora_alpha=tuning.alpha,
        target_modules=list(tuning.target_modules) or "all-linear",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return cast(PeftModel, get_peft_model(base, config))
        except ValueError as error:
            raise BadModelDirectory(f"no adapter fits this model: {error}") from error
