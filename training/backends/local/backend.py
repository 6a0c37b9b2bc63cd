"""The backend `local`: ART's own local training (vLLM, Unsloth), in a separate process (`server.py`).

Importing it patches asyncio for the whole process (`nest_asyncio`) and changes how processes are started. The service
therefore never imports it, and uses the same protocol with that process as with our engine.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from learnloop_service.environment.base import Json
from learnloop_service.training.backends.base import Endpoint, ModelSpec
from learnloop_service.training.backends.embedded import FencedPolicy
from learnloop_service.training.backends.hosted import HostedBackend, Server
from learnloop_service.training.backends.train_options import AS_LOSS_FN, LOCAL
from learnloop_service.training.backends.traits import BackendSettings, BackendTraits, Check, Host, State
from learnloop_service.training.gpu_memory import free_gpu_memory
from learnloop_service.training.protocol.model_name import ModelName

NAME = "local"
NEEDED = ("torch", "transformers", "trl", "peft", "polars", "nest_asyncio", "unsloth", "megatron")
"""Modules that ART's local backend imports before it trains. The extra `gpu` installs all of them except megatron."""
_ARGUMENTS = ("init_args", "engine_args", "peft_args", "trainer_args")
_NVIDIA = Path("/dev")


def missing(devices: Path = _NVIDIA) -> str | None:
    """Return why the backend cannot work on this machine and how to change that, or None if it can."""
    # Not importlib.util.find_spec, which cannot find modules that are hidden while ART is imported (art_import.py).
    if absent := [name for name in NEEDED if PathFinder.find_spec(name) is None]:
        return (
            f"it needs the Python packages {', '.join(absent)}, which are not installed here; "
            "install Learnloop with the extra `gpu` in an environment of its own (its torch is not the engine's), "
            "and ART's extra megatron, from ART's repository by uv (it pins versions that are not on PyPI)"
        )
    if not any(devices.glob("nvidia[0-9]*")):
        return "it needs an NVIDIA GPU, and this machine shows none (no /dev/nvidia0)"
    return None


def model_config(
    trainer_gpus: Sequence[int], inference_gpus: Sequence[int], arguments: Mapping[str, Mapping[str, Json]]
) -> dict[str, Any]:
    """Return ART's `TrainableModel(_internal_config=...)`. Without GPUs, training and sampling take turns on the first
    one; otherwise each uses its own. `arguments` are ART's `init_args`, `engine_args`, `peft_args` and `trainer_args`.

    Raises ValueError for values that ART would reject when it loads the model.
    """
    if unknown := set(arguments) - set(_ARGUMENTS):
        raise ValueError(f"ART has no {', '.join(sorted(unknown))}; there are: {', '.join(_ARGUMENTS)}")
    config: dict[str, Any] = {name: dict(values) for name, values in arguments.items()}
    if not trainer_gpus and not inference_gpus:
        return config
    if not trainer_gpus or len(inference_gpus) != 1:
        raise ValueError("split GPUs are one or more for training, and exactly one for sampling")
    if list(trainer_gpus) != list(range(len(trainer_gpus))):
        raise ValueError("GPUs for training are numbered from 0 without a gap: 0 or 0,1")
    if set(trainer_gpus) & set(inference_gpus):
        raise ValueError("a GPU is for training or for sampling; to share one, name none")
    return config | {"trainer_gpu_ids": list(trainer_gpus), "inference_gpu_ids": list(inference_gpus)}


class LocalSettings(BackendSettings):
    """What ART's local backend is started with."""

    model_config = SettingsConfigDict(env_prefix="LEARNLOOP_")

    local_trainer_gpus: Annotated[tuple[int, ...], NoDecode] = ()
    """GPUs on which ART's local backend trains, comma-separated. Empty: training and sampling take turns on one GPU."""
    local_inference_gpus: Annotated[tuple[int, ...], NoDecode] = ()
    """GPU on which ART's local backend samples if it trains on others."""
    local_arguments: dict[str, dict[str, Any]] = Field(default_factory=dict, validate_default=True)
    """ART's `init_args`, `engine_args`, `peft_args` and `trainer_args`, as JSON."""

    @field_validator("local_trainer_gpus", "local_inference_gpus", mode="before")
    @classmethod
    def _separated(cls, value: object) -> object:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("local_arguments")
    @classmethod
    def _as_art_takes_them(cls, value: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        model_config(info.data.get("local_trainer_gpus", ()), info.data.get("local_inference_gpus", ()), value)
        return value


def _gpu_memory(_: LocalSettings) -> Iterator[Check]:
    """Yield how much memory the GPUs have left. What a model needs is up to ART's arguments, so it is only shown."""
    free = [f"{free_bytes / 1e9:.1f} GB on GPU {number}" for number, free_bytes in enumerate(free_gpu_memory())]
    if free:
        yield Check("GPU memory", State.OK, f"{', '.join(free)} free")
    else:
        yield Check("GPU", State.FAILED, "nvidia-smi finds no GPU", "install its driver")


TRAITS = BackendTraits(
    train_options=LOCAL,
    samples_while_training=False,
    settings=LocalSettings,
    refusal=lambda _: missing(),
    preflight=_gpu_memory,
)


class LocalBackend(HostedBackend):
    """Policies in the directory of one such process."""

    name = NAME

    async def register(self, model: ModelSpec) -> "LocalPolicy":
        """Return the model, loading it if necessary, which takes minutes. Raises BackendUnavailable, also while the GPU
        serves another model, or ValueError."""
        return LocalPolicy(self.server, self.client, await self._get_or_create_model(model))

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        """Return no steps, because ART's local backend cannot fork models by name."""
        return frozenset()

    async def delete(self, model: ModelSpec) -> None:
        """Delete the model and its directory, if it exists. Raises BackendUnavailable."""
        with self.server.translated():
            await self.client.models.delete(model_id=f"{model.project}~{model.name}")


async def connect_here(host: Host, settings: LocalSettings) -> LocalBackend:
    """Return a backend for a process of this service, which is started when it is first used."""
    config = model_config(settings.local_trainer_gpus, settings.local_inference_gpus, settings.local_arguments)
    command = (sys.executable, "-m", f"{__package__}.server", "--model-config", json.dumps(config))
    address = await host.process(NAME, command)
    return await connect(f"{address.url}/v1", address.key)


async def connect(base_url: str, api_key: str) -> LocalBackend:
    """Return a backend for the process at a base URL, which ends in /v1."""
    server = Server("the local backend", base_url, api_key)
    return LocalBackend(server, await server.open())


class LocalPolicy(FencedPolicy):
    """One model in that process."""

    _losses = AS_LOSS_FN

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Return where the checkpoint of a step (None for the newest) is sampled."""
        name = ModelName(self._model.project, self._model.name, step)
        return Endpoint(self._server.base_url, self._server.api_key, str(name))
