"""What a figure was measured on: the card, the versions, the attention kernel, and the memory in use."""

import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from learnloop_service.environment.json_type import Json

_KERNEL = re.compile(r'"flash_attention": *(\d)')


def described(log: Path) -> dict[str, Json]:
    """Describe the machine. `log` is the service's, in which the engine says which attention kernels it uses."""
    kernels = _KERNEL.findall(log.read_text(errors="replace")) if log.exists() else []
    return {
        "machine": platform.node(),
        "card": ", ".join(_nvidia_smi("name")) or None,
        "attention": f"FlashAttention-{kernels[-1]}" if kernels else None,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def gpu_memory_gb() -> float | None:
    """Return the memory in use on the GPU that uses most, in 10^9 bytes, or None without a GPU."""
    return max((float(mebibytes) * 2**20 / 1e9 for mebibytes in _nvidia_smi("memory.used")), default=None)


def _nvidia_smi(field: str) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.splitlines() if line.strip()]
