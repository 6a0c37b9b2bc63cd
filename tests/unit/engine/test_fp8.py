"""Matrices in 8 bits: what rounding costs, and what is too odd for them."""

import pytest
import torch
from torch import Tensor

from learnloop_service.training.engine.weights.fp8 import Fp8Matrix, Fp8Unsupported, check_device, fits


def _back(matrix: Fp8Matrix) -> Tensor:
    return matrix.values.float() * matrix.scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_off_by_a_sixteenth_at_most(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exact = (torch.randn(64, 96) * torch.logspace(-6, 6, 64)[:, None]).to(dtype)
    before = exact.clone()
    rounded = Fp8Matrix.of(exact)
    assert rounded.values.shape == (64, 96)
    assert rounded.scales.shape == (64, 1)
    assert torch.equal(exact, before)
    # Half of the last of three bits, or of the smallest number's, which is a row's scale / 512.
    bound = torch.maximum(exact.float().abs() / 16, rounded.scales / 1024)
    assert bool(((_back(rounded) - exact.float()).abs() <= bound * 1.001).all())


def test_each_row_reaches_its_largest_number() -> None:
    exact = torch.tensor([[1.0, -3.0, 0.5], [1e-3, 2e-3, 0.0]])
    torch.testing.assert_close(_back(Fp8Matrix.of(exact)).abs().amax(dim=1), exact.abs().amax(dim=1))


def test_a_row_of_zeros_stays_one() -> None:
    rounded = Fp8Matrix.of(torch.zeros(2, 16))
    assert torch.equal(_back(rounded), torch.zeros(2, 16))


def test_a_matrix_is_filled_in_place() -> None:
    first, second = torch.randn(2, 4, 8)
    rounded = Fp8Matrix.of(first)
    values = rounded.values
    rounded.fill(second)
    assert rounded.values is values
    assert torch.equal(_back(rounded), _back(Fp8Matrix.of(second)))


def test_odd_sizes_do_not_fit() -> None:
    assert fits(32, 48)
    assert not fits(32, 40)
    assert not fits(40, 32)


def test_a_cpu_is_refused() -> None:
    with pytest.raises(Fp8Unsupported, match="need a GPU"):
        check_device(torch.device("cpu"))
