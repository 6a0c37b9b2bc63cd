"""What memory is free, and whether an error means that it ran out."""

import sys

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "DefaultCPU" in str(error))


def total_bytes(device: torch.device) -> int:
    """What a GPU's memory holds. Elsewhere nothing is counted."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def free_bytes(device: torch.device) -> int:
    """What a GPU's memory still holds, with what torch keeps for later. Elsewhere there is no telling."""
    if device.type != "cuda":
        return sys.maxsize
    free = torch.cuda.mem_get_info(device)[0]
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
