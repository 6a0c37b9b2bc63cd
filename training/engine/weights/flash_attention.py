"""Selects the FlashAttention version that a GPU runs: PyTorch's built-in version 2, or version 3 if its package is
installed.

FlashAttention-3 (Shah et al. 2024) is written for Hopper's asynchronous tensor cores. It is not on PyPI but in
PyTorch's package index (docs/engine.md).
"""

import warnings
from importlib.util import find_spec

import structlog
import torch
from torch.nn import attention

PACKAGE = "flash_attn_interface"
HOPPER = 9
"""Major compute capability of H100 and H200, the only GPUs that can run version 3."""

log = structlog.get_logger(__name__)


def use_newest() -> int:
    """Make PyTorch use FlashAttention-3 in this process if it is installed and all GPUs are Hopper's. Return the
    version in use, 2 or 3."""
    gpus = range(torch.cuda.device_count())
    if find_spec(PACKAGE) is None or any(torch.cuda.get_device_capability(gpu)[0] != HOPPER for gpu in gpus):
        return 2
    try:
        with warnings.catch_warnings(action="ignore"):  # replacing PyTorch's version is intended
            attention.activate_flash_attention_impl("FA3")
    except (
        AttributeError,
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # PyTorch is older or a different build
        log.warning("FlashAttention-3 cannot be used", error=str(error))
        return 2
    return 3
