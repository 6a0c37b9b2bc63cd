"""Where a model's layers lie, if one GPU does not hold them: in stages, one after the other, each on a device."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

WEIGHTS_SHARE = 0.6
"""Of a GPU's memory: more of it is not filled with weights, so that caches and training have room."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on one device."""

    device: torch.device
    layers: range


def stages_of(layers: int, devices: Sequence[torch.device]) -> tuple[Stage, ...]:
    """The layers in parts of equal size, give or take one, one for each device."""
    cuts = [layers * number // len(devices) for number in range(len(devices) + 1)]
    named = [torch.empty(0, device=device).device for device in devices]  # "cuda" is the current one
    return tuple(
        Stage(device, range(start, stop)) for device, start, stop in zip(named, cuts[:-1], cuts[1:], strict=True)
    )


def layers_by_device(stages: Iterable[Stage]) -> Counter[torch.device]:
    """How many layers of the stages each device has."""
    layers: Counter[torch.device] = Counter()
    for stage in stages:
        layers[stage.device] += len(stage.layers)
    return layers


def devices_needed(weight_bytes: int, devices: Sequence[torch.device]) -> tuple[torch.device, ...]:
    """The first few of the devices, as many as hold weights of that size; all of them, if they do not."""
    if devices[0].type != "cuda":
        return tuple(devices[:1])
    room = 0.0
    for count, device in enumerate(devices, start=1):
        room += WEIGHTS_SHARE * torch.cuda.get_device_properties(device).total_memory
        if weight_bytes <= room:
            return tuple(devices[:count])
    return tuple(devices)


def on(device: torch.device) -> AbstractContextManager[object]:
    """A block in which kernels are launched on the device: those of Triton go to the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
