"""What memory is free, whether an error means that it ran out, and how numbers get to a GPU."""

import sys
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "DefaultCPU" in str(error))


def uploaded(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array on a device. A GPU goes on meanwhile with what it was asked before, and nobody waits for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def downloading(*tensors: torch.Tensor) -> Callable[[], tuple[npt.NDArray[Any], ...]]:
    """Tensors as arrays, once they are asked for: of a GPU those on one device, which it goes on to send while it is
    asked for more. Only what it was asked before is waited for."""
    if tensors[0].device.type != "cuda":
        return lambda: tuple(tensor.numpy() for tensor in tensors)
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
    sent.record(torch.cuda.current_stream(tensors[0].device))

    def arrays() -> tuple[npt.NDArray[Any], ...]:
        sent.synchronize()
        return tuple(copy.numpy() for copy in copies)

    return arrays


def total_bytes(device: torch.device) -> int:
    """What a GPU's memory holds. Elsewhere nothing is counted."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def free_bytes(device: torch.device) -> int:
    """What a GPU's memory still holds, with what torch keeps for later. Elsewhere there is no telling."""
    if device.type != "cuda":
        return sys.maxsize
    free = torch.cuda.mem_get_info(device)[0]
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
