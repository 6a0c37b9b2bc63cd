"""How much memory the GPUs of this machine have left."""

import subprocess

_QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


def free_gpu_memory() -> list[float]:
    """Return the free memory of each GPU in bytes; empty without a GPU or its driver."""
    try:
        listing = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [float(line) * 2**20 for line in listing.stdout.split()]
