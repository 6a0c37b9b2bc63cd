"""The placement of a model's layers if one GPU cannot hold them: in consecutive stages, each on one device."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

WEIGHTS_SHARE = 0.6
"""Largest share of a GPU's memory to fill with weights, so that caches and training have room."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on one device."""

    device: torch.device
    layers: range


def stages_of(layers: int, devices: Sequence[torch.device]) -> tuple[Stage, ...]:
    """Split the layers into one stage per device, with sizes that differ by at most one."""
    cuts = [layers * number // len(devices) for number in range(len(devices) + 1)]
    named = [torch.empty(0, device=device).device for device in devices]  # resolves "cuda" to the current device
    return tuple(
        Stage(device, range(start, stop)) for device, start, stop in zip(named, cuts[:-1], cuts[1:], strict=True)
    )


def layers_by_device(stages: Iterable[Stage]) -> Counter[torch.device]:
    """Count the layers of the stages on each device."""
    layers: Counter[torch.device] = Counter()
    for stage in stages:
        layers[stage.device] += len(stage.layers)
    return layers


def devices_needed(weight_bytes: int, devices: Sequence[torch.device]) -> tuple[torch.device, ...]:
    """Return as many of the first devices as can hold weights of that size, or all of them if they cannot."""
    if devices[0].type != "cuda":
        return tuple(devices[:1])
    room = 0.0
    for count, device in enumerate(devices, start=1):
        room += WEIGHTS_SHARE * torch.cuda.get_device_properties(device).total_memory
        if weight_bytes <= room:
            return tuple(devices[:count])
    return tuple(devices)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which kernels are launched on the device, because Triton launches on the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
