"""What an engine computes on, and how much of its memory is taken, for monitoring."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
"""On Linux, the sizes of this process in pages; the second one is what is resident."""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """A processor and its memory. None where it is not known."""

    name: str
    memory_used_bytes: int | None
    """Taken memory: a GPU's by all processes; of a CPU what this process has in main memory."""
    memory_total_bytes: int | None


def device_figures(devices: Sequence[torch.device]) -> list[DeviceFigures]:
    """Return the current figures of each device. Can be called from any thread."""
    return [_gpu(device) if device.type == "cuda" else _cpu() for device in devices]


def _gpu(device: torch.device) -> DeviceFigures:
    # Asking a GPU that is not used yet would take memory there.
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return DeviceFigures("GPU", None, None)
    name = torch.cuda.get_device_name(device)
    if not torch.cuda.memory_reserved(device):
        return DeviceFigures(name, None, None)
    free, total = torch.cuda.mem_get_info(device)
    return DeviceFigures(name, total - free, total)


def _cpu() -> DeviceFigures:
    threads = torch.get_num_threads()
    name = f"CPU, {threads} thread{'' if threads == 1 else 's'}, {platform.machine()}"
    if not _STATM.exists():
        return DeviceFigures(name, None, None)
    page = os.sysconf("SC_PAGE_SIZE")
    return DeviceFigures(name, int(_STATM.read_text().split()[1]) * page, os.sysconf("SC_PHYS_PAGES") * page)
