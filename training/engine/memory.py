"""Free memory, its release, detection of out-of-memory errors, and transfers between CPU and GPU."""

import sys
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out. PyTorch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "DefaultCPU" in str(error))


def uploaded(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device. On a GPU the copy is asynchronous and does not block."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def downloading(*tensors: torch.Tensor) -> Callable[[], tuple[npt.NDArray[Any], ...]]:
    """Start copying tensors to the CPU and return a function that returns them as arrays. Those on a GPU, all on one
    device, are sent while the GPU gets more work; the function waits only for work queued before this call."""
    if tensors[0].device.type != "cuda":
        return lambda: tuple(tensor.numpy() for tensor in tensors)
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensors[0].device))

    def arrays() -> tuple[npt.NDArray[Any], ...]:
        copied.synchronize()
        return tuple(copy.numpy() for copy in copies)

    return arrays


def total_bytes(device: torch.device) -> int:
    """Return the size of a GPU's memory, or 0 for other devices."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def free_bytes(device: torch.device) -> int:
    """Return a GPU's free memory, including what torch keeps in reserve. Unlimited for other devices."""
    if device.type != "cuda":
        return sys.maxsize
    free = torch.cuda.mem_get_info(device)[0]
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def release_reserved() -> None:
    """Return the memory that torch keeps in reserve on all GPUs to the driver, once their work is done.

    Before torch unmaps a part of an expandable segment it waits for the current GPU only, whichever GPU has that part
    (pytorch/pytorch#196258). Kernels still queued on another GPU would then access memory that is gone.
    """
    for number in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(number):  # others may have no context yet, and it would take memory
            torch.cuda.synchronize(number)
    torch.cuda.empty_cache()
