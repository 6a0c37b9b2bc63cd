"""Products in 8 bits, by our kernels on a GPU and in plain torch elsewhere, where they are as exact as their
factors."""

import torch.nn.functional as F
from torch import Tensor

from learnloop_service.training.engine.weights.fp8 import Fp8Matrix


def quantised(source: Tensor, factors: Tensor | None = None) -> Fp8Matrix:
    """Quantise `source` [n, width], whose rows may be strided, to the nearest numbers, its columns multiplied by
    `factors` [width, 1] first."""
    if source.device.type != "cuda":
        return Fp8Matrix.of(source if factors is None else source * factors.t())
    from learnloop_service.training.engine.weights import fp8_kernels  # Triton comes with torch for CUDA only

    count, width = source.shape
    tokens = Fp8Matrix.empty(count, width, source.device)
    fp8_kernels.quantise(source, tokens, factors)
    return tokens


def product(
    tokens: Fp8Matrix, matrix: Fp8Matrix, narrow: Tensor, high: Tensor, bias: Tensor | None, *, parts: bool = False
) -> Tensor:
    """Return tokens matrix^T + narrow high^T + bias, [n, rows]. `narrow` [n, columns] and `high` [rows, columns] have
    the result's precision. With `parts` the result can be [parts, n, rows], which the reader sums."""
    if narrow.device.type == "cuda":
        from learnloop_service.training.engine.weights import fp8_kernels

        return fp8_kernels.product(tokens, matrix, narrow, high, bias, parts=parts)
    return F.linear(tokens.exact(narrow.dtype), matrix.exact(narrow.dtype), bias).addmm_(narrow, high.t())


def product_backward(grad: Tensor, matrix: Fp8Matrix, narrow: Tensor, low: Tensor) -> Tensor:
    """Return grad matrix + narrow low, [n, width]: the gradient of a product's inputs, where `grad` is [n, rows],
    `narrow` [n, columns] and `low` [columns, width].

    The matrix's scales belong to the summed dimension here, so the slopes take them over before they are rounded. Its
    values are transposed each time, which takes about a hundredth of the product; a second copy would take as much
    memory as the first."""
    slopes = quantised(grad, matrix.scales)
    if grad.device.type == "cuda":
        from learnloop_service.training.engine.weights import fp8_kernels

        values = fp8_kernels.transposed(matrix)
    else:
        values = matrix.values.t()
    turned = Fp8Matrix(values, matrix.scales.new_ones((len(values), 1)))
    return product(slopes, turned, narrow, low.t(), None)
