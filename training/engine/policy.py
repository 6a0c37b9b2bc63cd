"""The weights that training changes: a Hugging Face causal LM, whole or through a LoRA adapter, and its optimizer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from training.engine.checkpoints import ADAPTER_FILE, OPTIMIZER_FILE
from training.engine.optimizer import Optimizer
from training.engine.tuning import Tuning

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
        self._base_directory = base_directory
        self._reference: PreTrainedModel | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def context(self) -> int:
        """The most tokens that the model can attend to."""
        return int(self.model.config.max_position_embeddings)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The base model, for the KL penalty."""
        if self.tuning.mode == "lora":
            with cast(Any, self.model).disable_adapter():
                yield self.model
            return
        if self._reference is None:
            self._reference = load_model(self._base_directory(), self.device)
        yield self._reference

    def save(self, directory: Path) -> None:
        """Write weights and config (of an adapter: in peft's layout) and the optimizer's state."""
        self.model.save_pretrained(directory)
        if self.tuning.mode == "lora":
            # peft writes a model card with the base's path on this machine in it.
            (directory / "README.md").unlink(missing_ok=True)
        if tensors := self.optimizer.tensors():
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / OPTIMIZER_FILE)


def load_policy(directory: Path, base_directory: Callable[[], Path], tuning: Tuning, device: torch.device) -> Policy:
    """The policy of a checkpoint directory, with its optimizer's state if it has one. Raises BadModelDirectory."""
    base = base_directory() if tuning.mode == "lora" else directory
    policy = Policy(load_checkpoint(directory, base, tuning, device, trainable=True), tuning, base_directory)
    state = directory / OPTIMIZER_FILE
    if state.is_file():
        policy.optimizer.load(load_file(state))
    return policy


def load_checkpoint(
    directory: Path, base_directory: Path, tuning: Tuning, device: torch.device, *, trainable: bool = False
) -> PreTrainedModel:
    """The model of a checkpoint directory. Raises BadModelDirectory."""
    if tuning.mode == "full":
        return load_model(directory, device)
    base = load_model(base_directory, device)
    if (directory / ADAPTER_FILE).is_file():
        return cast(PreTrainedModel, PeftModel.from_pretrained(base, str(directory), is_trainable=trainable).eval())
    return cast(PreTrainedModel, _fresh_adapter(base, tuning).eval())


def load_model(directory: Path, device: torch.device) -> PreTrainedModel:
    """A causal LM from a local directory in Hugging Face layout with safetensors weights, without dropout.

    fp32 on a CPU, where it is the fastest, and on CUDA, where autocast computes in bf16. Raises BadModelDirectory.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise BadModelDirectory(f"{directory.name} holds no loadable causal language model: {error}") from error
    # Its `to` is wrapped in a way that hides its arguments from the type checker.
    return cast(PreTrainedModel, cast(Any, model).to(device).eval())


def _fresh_adapter(base: PreTrainedModel, tuning: Tuning) -> PeftModel:
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
