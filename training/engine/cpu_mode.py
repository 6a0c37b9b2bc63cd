"""The processor mode of the engine's computations, which makes results independent of batch and thread count.

Without it MKL picks the kernel of a matrix product by its size and the number of threads, and kernels differ in the
last bits. Strict mode has one kernel for all sizes. All x86 processors of the last ten years have AVX2, so requesting
it rather than the newest instruction set gives the same products on all of them; an AMD processor falls back to its
only strict mode, whose products have the same bits. PyTorch's own kernels (softmax, norms, attention) come in two
widths with different bits, hence the second variable.

Measurements, and where Intel and AMD still differ: docs/engine.md.
"""

import os
import platform
from pathlib import Path

MKL_MODE = "MKL_CBWR"
TORCH_MODE = "ATEN_CPU_CAPABILITY"
CPUINFO = Path("/proc/cpuinfo")


def set_cpu_mode() -> None:
    """Set the mode in this process's environment, unless the environment specifies one already.

    Call it before torch computes anything, because the libraries read it once, at their first operation.
    """
    for name, value in cpu_mode().items():
        os.environ.setdefault(name, value)


def cpu_mode() -> dict[str, str]:
    """Return the environment variables of the mode for this processor. Empty if MKL is not in use."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return {}
    if not _has_avx2():
        return {MKL_MODE: "AUTO,STRICT"}
    return {MKL_MODE: "AVX2,STRICT", TORCH_MODE: "avx2"}


def _has_avx2() -> bool:
    """Whether the processor has AVX2, as reported by Linux. Assumed on other systems."""
    try:
        return "avx2" in CPUINFO.read_text().split()
    except OSError:
        return True
