"""Rotary position embedding (Su et al. 2021) as a complex product, for heads whose two halves are interleaved."""

import torch
from torch import Tensor

BLOCK = 1024
"""Number of positions computed at a time. The shape is fixed so that an angle never depends on the table's length."""


class RotaryTable:
    """Rotations by position, computed as far as requested."""

    def __init__(self, inverse_frequencies: Tensor, scale: float, device: torch.device) -> None:
        """`inverse_frequencies` is [D/2]; `scale` multiplies rotated queries and keys."""
        self._inverse_frequencies = inverse_frequencies.detach().to(device, torch.float32, copy=True)
        self._scale = scale
        self._turns = torch.empty((0, 1, len(inverse_frequencies)), dtype=torch.complex64, device=device)

    def __call__(self, positions: int) -> Tensor:
        """Return rotations [at least `positions`, 1, D/2] as complex numbers."""
        while len(self._turns) < positions:
            block = torch.arange(len(self._turns), len(self._turns) + BLOCK, device=self._turns.device)
            angles = block[:, None].float() * self._inverse_frequencies
            turns = torch.polar(torch.full_like(angles, self._scale), angles)
            self._turns = torch.cat([self._turns, turns[:, None]])
        return self._turns
