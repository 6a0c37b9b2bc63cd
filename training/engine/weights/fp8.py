"""Matrices in 8 bits, which a GPU reads in half of bfloat16's time and multiplies about twice as fast.

A float8 number (e4m3) has four significant bits, so its relative error is at most a sixteenth. Each row has a scale
that maps its largest number to the largest float8 number (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
SMALLEST_ROW = 1e-12
"""Smallest number that a row's scale is computed for, so that the scale of a row of zeros is not 0."""
MULTIPLE = 16
"""Number by which a matrix's height and width must be divisible for tensor cores."""
CAPABILITIES = (9, 10)
"""Supported major compute capabilities. Older GPUs have no float8 tensor cores or (8.9 and 12) too little shared memory
for the kernels' tiles."""


class Fp8Unsupported(Exception):
    """There is no GPU, or its float8 products are not the ones that the kernels are written for."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix in 8 bits whose row i is `values[i] * scales[i]`: `values` [n, width] float8, `scales` [n, 1]
    float32."""

    values: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, count: int, width: int, device: torch.device) -> "Fp8Matrix":
        """Allocate an uninitialized matrix."""
        values = torch.empty((count, width), dtype=FLOAT8, device=device)
        return cls(values, torch.empty((count, 1), dtype=torch.float32, device=device))

    @classmethod
    def of(cls, matrix: Tensor) -> "Fp8Matrix":
        """Quantize a matrix [n, width] to the nearest numbers."""
        count, width = matrix.shape
        quantized = cls.empty(count, width, matrix.device)
        quantized.fill(matrix)
        return quantized

    def exact(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [n, width], scales included, in a higher precision."""
        return self.values.to(dtype) * self.scales.to(dtype)

    def fill(self, matrix: Tensor) -> None:
        """Quantize a matrix of the same shape into this one."""
        exact = matrix.float()
        scales = exact.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST_ROW) / LARGEST
        self.scales.copy_(scales)
        self.values.copy_(exact / scales)


def fits(count: int, width: int) -> bool:
    """Whether a matrix [count, width] has dimensions that can be multiplied in 8 bits."""
    return count % MULTIPLE == width % MULTIPLE == 0


def check_device(device: torch.device) -> None:
    """Raise Fp8Unsupported for a device that the kernels do not support."""
    if device.type != "cuda" or not torch.cuda.is_available():
        raise Fp8Unsupported("products in fp8 need a GPU")
    major, minor = torch.cuda.get_device_capability(device)
    if major not in CAPABILITIES:
        name = torch.cuda.get_device_name(device)
        raise Fp8Unsupported(
            f"products in fp8 need a GPU of compute capability 9 or 10 (H100, H200, B200); {name} has {major}.{minor}"
        )
