"""The demo with a base model that others made: what it needs, and what it requests.

The request names neither a learning rate nor a number of iterations or groups: the defaults are what is demonstrated.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.padding import Padding

from learnloop_service.app.cli.demo.base import FoundBase, add_found, find_base
from learnloop_service.app.cli.demo.own_data import OwnData, own_data
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.environment.json_type import Json

_MAX_SCENARIOS = 1_000
"""Most test scenarios of a run."""


class Device(StrEnum):
    """What the engine computes on."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class RealBase:
    """A base model that was added, the data that it learns from, and how the service is started for them."""

    name: str
    data: OwnData
    variables: Mapping[str, str]
    """Environment variables of the service."""

    def request(self, request: Mapping[str, Json]) -> dict[str, Json]:
        """Return the learn-loop request with this model and data, without the fields that were not given."""
        config = {} if self.data.name is None else {"config": {"inbox": self.data.name}}
        return {
            **{name: value for name, value in request.items() if value is not None},
            "environment": {**request["environment"], **config},
            "model": {"base_model": self.name},
            "evaluation": {"test_scenarios": _scenarios(self.data)},
        }


def prepare_real_base(
    named: str, environment: str, paths: Sequence[str], device: Device | None, data_dir: Path
) -> RealBase:
    """Add the base model and prepare the data at these paths for the environment. Raises Failure.

    If no device is given and nvidia-smi finds no GPU, it is raised before any work.
    """
    settings = settings_with(data_dir=data_dir)
    base = find_base(named, data_dir, settings_with().data_dir)
    if device is None:
        _require_gpu(base)
    add_found(base, settings)
    data = own_data(environment, paths, settings)
    arguments = shlex.join((*settings.engine_args, "--device", (device or Device.CUDA).value))
    return RealBase(base.name, data, {"LEARNLOOP_ENGINE_ARGS": arguments})


def _require_gpu(base: FoundBase) -> None:
    from learnloop_service.training.gpu_memory import free_gpu_memory

    if not free_gpu_memory():
        raise Failure(
            f"no GPU was found (nvidia-smi): the demo with {base.hub_id or base.name} needs one{_needed_memory(base)}. "
            "A model of 1.5 billion parameters takes about six minutes on an H200 (docs/real_models.md). "
            "`--device cpu` trains on this machine's processors, which suits models of some million parameters"
        )


def _needed_memory(base: FoundBase) -> str:
    from learnloop_service.training.bases.memory import memory_needed, usual_tuning_of

    if base.source is None or not base.source.is_dir() or not (base.source / "config.json").is_file():
        return ""
    try:
        tuning = usual_tuning_of(base.source)
        need = memory_needed(base.source, tuning, "cuda")
    except (OSError, ValueError):
        return ""
    trained = "all weights" if tuning.mode == "full" else "a LoRA"
    size = f"{need.parameters / 1e6:,.0f} million parameters, {trained} trained"
    return f" with about {need.total / 1e9:.0f} GB of memory ({size})"


def print_real_introduction(console: Console, real: RealBase) -> None:
    """Print which model learns, from which data, and how it is evaluated."""
    data = real.data
    console.print(f"Learnloop demo: {real.name} learns by reinforcement learning on this machine", style="bold")
    inboxes = "invented inboxes" if data.name is None else f"a mailbox of {data.emails:,} emails"
    text = (
        f"It acts as an email agent for {inboxes}: given a question, it has to search, open emails, and answer with "
        "the email that proves it. A judge compares each answer with the known one, and training makes those rollouts "
        "more likely that did better than the others on the same question (GRPO). All settings are the service's "
        f"defaults. At the end both models answer {_scenarios(data)} test questions that neither was trained on."
    )
    console.print(Padding(text, (0, 0, 1, 2), expand=False))


def _scenarios(data: OwnData) -> int:
    return min(data.test_questions, _MAX_SCENARIOS)
