"""The processor mode in which the engine computes, so that a result depends on neither its batch nor the thread count.

Without it MKL picks the kernel of a matrix product by its size and by the number of threads, and kernels differ in the
last bits. Strict mode has one kernel for all sizes. AVX2 is what every x86 processor of the last ten years has, so
asking for it, and not for the newest that the processor can do, gives the same products on all of them; an AMD
processor takes its only strict mode, whose products have the same bits. PyTorch's own kernels (softmax, norms,
attention) come in two widths with different bits, hence the second variable.

What was measured, and where Intel and AMD still differ: docs/engine.md.
"""

import os
import platform
from pathlib import Path

MKL_MODE = "MKL_CBWR"
TORCH_MODE = "ATEN_CPU_CAPABILITY"
CPUINFO = Path("/proc/cpuinfo")


def set_cpu_mode() -> None:
    """Set the mode in this process's environment; a mode that the environment names already is kept.

    Call it before torch computes anything: the libraries read it once, with their first operation.
    """
    for name, value in cpu_mode().items():
        os.environ.setdefault(name, value)


def cpu_mode() -> dict[str, str]:
    """The environment variables of the mode that suits this processor; none where MKL is not what computes."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return {}
    if not _has_avx2():
        return {MKL_MODE: "AUTO,STRICT"}
    return {MKL_MODE: "AVX2,STRICT", TORCH_MODE: "avx2"}


def _has_avx2() -> bool:
    """Whether the processor has AVX2, as Linux reports it; taken for granted elsewhere."""
    try:
        return "avx2" in CPUINFO.read_text().split()
    except OSError:
        return True
