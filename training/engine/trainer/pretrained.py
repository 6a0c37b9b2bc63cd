"""Models read by transformers, with peft's adapters: those of shapes other than Llama's, on GPUs, or with adapters."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

import torch
from accelerate.hooks import remove_hook_from_module
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, modeling_utils
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learnloop_service.training.engine.memory import is_out_of_memory
from learnloop_service.training.engine.registry.base_models import parameter_count
from learnloop_service.training.engine.registry.checkpoints import ADAPTER_FILE
from learnloop_service.training.engine.registry.model_record import BadModelDirectory
from learnloop_service.training.engine.trainer.lean_modules import make_lean
from learnloop_service.training.engine.trainer.packed_attention import ATTENTION
from learnloop_service.training.engine.weights.joined import JoinedModel, has_kernels
from learnloop_service.training.engine.weights.llama_cpu import FusedWeights
from learnloop_service.training.engine.weights.stages import devices_needed, stages_of
from learnloop_service.training.engine.weights.tensor_file import can_write, write_tensors
from learnloop_service.training.tuning import Tuning

USUAL_RANKS = 32
"""Adapters of up to this rank share one copy of their base, which has the same columns for all of them. As many ranks
are computed side by side, which is four adapters of the usual rank."""

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load_pretrained(
    directory: Path,
    base_directory: Path,
    tuning: Tuning,
    device: torch.device,
    bases: "SharedBases | None",
    *,
    trainable: bool,
) -> PreTrainedModel:
    """Load the model of a checkpoint directory; an adapter is put on its base from `bases`. Raises
    BadModelDirectory."""
    # On a GPU only trained weights need float32. Products use bfloat16, and sums float32.
    exact = device.type == "cpu" or (trainable and tuning.mode == "full")
    dtype = torch.float32 if exact else torch.bfloat16
    if tuning.mode == "full":
        return load_model(directory, device, dtype)
    base = load_model(base_directory, device, dtype) if bases is None else bases.model(base_directory, tuning)
    if (directory / ADAPTER_FILE).is_file():
        return cast(PreTrainedModel, PeftModel.from_pretrained(base, str(directory), is_trainable=trainable).eval())
    return cast(PreTrainedModel, fresh_adapter(base, tuning).eval())


def save_adapter(model: Any, directory: Path) -> dict[str, str]:
    """Save the weights and the configuration of the model's adapter. Return the hash of the weights by their file's
    name.

    The model card that peft's `save_pretrained` adds is left out, because it holds the base's path on this machine.
    """
    tensors = {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(model).items()}
    hashed = {ADAPTER_FILE: write_tensors(tensors, directory / ADAPTER_FILE, {"format": "pt"})}
    config = copy.copy(model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(str(directory))
    return hashed


def save_whole(model: PreTrainedModel, directory: Path) -> dict[str, str]:
    """Save all weights and the configuration. Return the hashes of the weights by their files' names.

    The files are those of transformers' `save_pretrained`, which writes each while no other thread can run.
    """
    hashed: dict[str, str] = {}
    transformers: Any = modeling_utils
    writer = transformers.safe_save_file

    def write(tensors: dict[str, torch.Tensor], path: str, metadata: dict[str, str] | None = None) -> None:
        if can_write(tensors.values()):
            hashed[Path(path).name] = write_tensors(tensors, Path(path), metadata)
        else:  # some models have integers among their buffers
            writer(tensors, path, metadata)

    transformers.safe_save_file = write
    try:
        model.save_pretrained(directory)
    finally:
        transformers.safe_save_file = writer
    return hashed


def pack_modules(model: PreTrainedModel) -> None:
    """Make the modules of a Llama-shaped model compute packed sequences and use less memory."""
    model.set_attn_implementation(ATTENTION)
    make_lean(model)


class SharedBases:
    """Base models on GPUs, with one copy of each under all adapters that are currently loaded.

    A model that does not fit on one GPU is spread over as many as needed, with equal numbers of layers.
    """

    def __init__(self, devices: Sequence[torch.device], *, in_fp8: bool = False) -> None:
        """With `in_fp8`, Llama-shaped bases are sampled and trained over in 8 bits (JoinedModel)."""
        self._devices = tuple(devices)
        self._in_fp8 = in_fp8
        self._loaded: WeakValueDictionary[tuple[Path, int], JoinedModel] = WeakValueDictionary()

    def has(self, directory: Path, tuning: Tuning) -> bool:
        """Whether the base for an adapter of that tuning is loaded."""
        return self._key(directory, tuning) in self._loaded

    def devices(self, directory: Path) -> tuple[torch.device, ...]:
        """Return the devices that a base takes. Raises UnknownModel."""
        needed = devices_needed(self.weight_bytes(directory), self._devices)
        return needed if len(needed) == 1 or _is_joined(directory) else needed[:1]

    def weight_bytes(self, directory: Path) -> int:
        """Return about how many bytes a base takes: one for a parameter in 8 bits, otherwise two. Raises
        UnknownModel."""
        return (1 if self._in_fp8 and _is_joined(directory) else 2) * parameter_count(directory)

    def model(self, directory: Path, tuning: Tuning) -> PreTrainedModel:
        """Return the base for an adapter of that tuning. Its weights are shared and must not be changed.

        Raises BadModelDirectory.
        """
        joined = self._loaded.get(self._key(directory, tuning))
        if joined is None:
            devices = self.devices(directory)
            model = self._load(directory, devices)
            if not (FusedWeights.supports(model) and has_kernels(model)):
                return cast(PreTrainedModel, model.to(devices[0]))
            ranks = max(tuning.rank, USUAL_RANKS)
            joined = JoinedModel(model, devices, torch.bfloat16, ranks=ranks, share=True, in_fp8=self._in_fp8)
            joined.model = model
            self._loaded[self._key(directory, tuning)] = joined
        weights = (*joined.model.parameters(), *joined.model.buffers())
        copied: Any = copy.deepcopy(joined.model, {id(tensor): tensor for tensor in weights})
        copied.joined = joined
        return cast(PreTrainedModel, copied)

    def _load(self, directory: Path, devices: Sequence[torch.device]) -> Any:
        if self._in_fp8:  # in bfloat16 it takes twice the memory, so each layer moves to its GPU when it is joined
            return load_model(directory, torch.device("cpu"), torch.bfloat16)
        if len(devices) > 1:
            return load_in_stages(directory, devices)
        return load_model(directory, devices[0], torch.bfloat16)

    @staticmethod
    def _key(directory: Path, tuning: Tuning) -> tuple[Path, int]:
        return directory, max(tuning.rank, USUAL_RANKS)


def load_model(directory: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Load a causal LM, without dropout, from a local directory in Hugging Face layout with safetensors weights.

    Raises BadModelDirectory.
    """
    # The decorator of `to` hides its arguments from the type checker.
    return cast(PreTrainedModel, cast(Any, _read(directory, dtype)).to(device).eval())


def load_in_stages(directory: Path, devices: Sequence[torch.device]) -> PreTrainedModel:
    """Load a Llama-shaped model in bfloat16 with its layers spread equally over the devices. Raises
    BadModelDirectory."""
    first, last = devices[0], devices[-1]
    places = {"model.embed_tokens": first, "model.rotary_emb": first, "model.norm": last, "lm_head": last}
    for stage in stages_of(_config(directory).num_hidden_layers, devices):
        places |= {f"model.layers.{number}": stage.device for number in stage.layers}
    model = _read(directory, torch.bfloat16, device_map=places)
    # The hooks move tensors between modules, which is not needed because the model is never called as a whole.
    remove_hook_from_module(model, recurse=True)
    return cast(PreTrainedModel, model.eval())


def _is_joined(directory: Path) -> bool:
    """Whether a model's matrices are joined, and its layers can be spread over several devices: Llama-shaped ones."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_config(directory))  # type: ignore[no-untyped-call]
    return FusedWeights.supports(model) and has_kernels(model)


def _config(directory: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # as above
        raise _unloadable(directory, error) from error
    return config


def _read(directory: Path, dtype: torch.dtype, **options: Any) -> Any:
    try:
        return AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            **options,
        )
    except Exception as error:  # files from outside can cause any exception of the libraries
        if is_out_of_memory(error):
            raise
        raise _unloadable(directory, error) from error


def _unloadable(directory: Path, error: Exception) -> BadModelDirectory:
    return BadModelDirectory(f"{directory.name} holds no loadable causal language model: {error}")


def fresh_adapter(base: PreTrainedModel, tuning: Tuning) -> PeftModel:
    """Create a new adapter that is the same each time: its B matrices are zero and its A matrices random with a fixed
    seed."""
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
