"""Which FlashAttention a GPU runs: PyTorch's own, the second, or the third where its package is installed.

FlashAttention-3 (Shah et al. 2024) is written for Hopper's asynchronous tensor cores. It is not on PyPI: PyTorch's
package index has it (docs/engine.md).
"""

import warnings
from importlib.util import find_spec

import structlog
import torch
from torch.nn import attention

PACKAGE = "flash_attn_interface"
HOPPER = 9
"""The compute capability of H100 and H200: of the others none can run it."""

log = structlog.get_logger(__name__)


def use_newest() -> int:
    """Have PyTorch compute attention in this process with FlashAttention-3, if it is installed and all GPUs are
    Hopper's. Returns the one that is used, 2 or 3."""
    gpus = range(torch.cuda.device_count())
    if find_spec(PACKAGE) is None or any(torch.cuda.get_device_capability(gpu)[0] != HOPPER for gpu in gpus):
        return 2
    try:
        with warnings.catch_warnings(action="ignore"):  # that it takes the place of PyTorch's is what is wanted
            attention.activate_flash_attention_impl("FA3")
    except (
        AttributeError,
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # PyTorch is older, or another build
        log.warning("FlashAttention-3 cannot be used", error=str(error))
        return 2
    return 3
