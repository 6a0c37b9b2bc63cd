"""Triton kernels for products in 8 bits. They quantise tokens on the fly and speed up products of few tokens, which are
limited by how fast the matrix is read.

Imported only if there is a GPU (Triton comes with torch's CUDA builds).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from learnloop_service.training.engine.weights.adapters import COLUMN_MULTIPLE
from learnloop_service.training.engine.weights.attention import round_up
from learnloop_service.training.engine.weights.fp8 import LARGEST, SMALLEST_ROW, Fp8Matrix

FEW_TOKENS = 128
"""Largest number of tokens for which our kernel is used. It reads the matrix once for every BLOCK_TOKENS tokens."""
BLOCK_TOKENS = 64
STAGES = 4
MULTIPROCESSORS = 132
"""Number of multiprocessors of an H100 or H200."""
MAX_PARTS = 4
TRANSPOSED_BLOCK = 128
"""Rows and columns that a program transposes, so that it reads and writes whole cache lines of 128 bytes."""


class Tile(NamedTuple):
    """The block of the product that a program reads at a time."""

    rows: int
    inputs: int
    warps: int


# The fastest of eight tiles on an H200 with 48 tokens, for the four matrices of a layer of Qwen3-14B.
TILES = (Tile(128, 128, 8), Tile(64, 256, 8), Tile(32, 256, 4))
"""Candidate tiles; the first that gives every multiprocessor some rows is used."""
TILE_OF_PARTS = Tile(64, 128, 4)
"""Tile for products in parts, with as many parts as give every multiprocessor two programs."""


@triton.jit  # type: ignore[untyped-decorator]
def _quantise(
    source,
    other,
    out,
    factors,
    values,
    scales,
    stride,
    out_stride,
    width,
    LARGEST: tl.constexpr,
    SMALLEST_ROW: tl.constexpr,
    SILU: tl.constexpr,
    FACTORS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(source + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        x = x * tl.sigmoid(x) * tl.load(other + token * stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + token * out_stride + column, x.to(out.dtype.element_ty), mask=inside)
    if FACTORS:
        x *= tl.load(factors + column, mask=inside, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), SMALLEST_ROW) / LARGEST
    tl.store(scales + token, scale)
    tl.store(values + token * width + column, (x / scale).to(values.dtype.element_ty), mask=inside)


def quantise(source: torch.Tensor, tokens: Fp8Matrix, factors: torch.Tensor | None = None) -> None:
    """Quantise `source` [n, width], whose rows may be strided, into `tokens`, its columns multiplied by `factors`
    [width, 1] first."""
    _fill(tokens, source, source, source, factors, silu=False)


def silu_mul_quantised(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, tokens: Fp8Matrix) -> None:
    """Write silu(gate) * up to `out`, whose rows may be strided, and quantised to `tokens`. Gate and up are [n, width]
    each and are both whole matrices or both column ranges of one."""
    _fill(tokens, gate, up, out, None, silu=True)


def _fill(
    tokens: Fp8Matrix,
    source: torch.Tensor,
    other: torch.Tensor,
    out: torch.Tensor,
    factors: torch.Tensor | None,
    *,
    silu: bool,
) -> None:
    count, width = source.shape
    block = int(triton.next_power_of_2(width))
    _quantise[(count,)](
        source,
        other,
        out,
        source if factors is None else factors,
        tokens.values,
        tokens.scales,
        source.stride(0),
        out.stride(0),
        width,
        LARGEST=LARGEST,
        SMALLEST_ROW=SMALLEST_ROW,
        SILU=silu,
        FACTORS=factors is not None,
        BLOCK=block,
        num_warps=min(max(block // 1024, 4), 32),  # a thread handles up to 32 numbers of a row
    )


@triton.jit  # type: ignore[untyped-decorator]
def _transpose(values, out, rows, width, BLOCK: tl.constexpr) -> None:
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    tile = tl.load(
        values + row[:, None] * width + column[None, :], mask=(row < rows)[:, None] & (column < width)[None, :]
    )
    turned = column[:, None] * rows + row[None, :]
    tl.store(out + turned, tl.trans(tile), mask=(column < width)[:, None] & (row < rows)[None, :])


def transposed(matrix: Fp8Matrix) -> torch.Tensor:
    """Return a matrix's values [n, width] without their scales as [width, n], contiguous."""
    rows, width = matrix.values.shape
    out = matrix.values.new_empty((width, rows))
    blocks = triton.cdiv(rows, TRANSPOSED_BLOCK), triton.cdiv(width, TRANSPOSED_BLOCK)
    _transpose[blocks](matrix.values.view(torch.int8), out.view(torch.int8), rows, width, BLOCK=TRANSPOSED_BLOCK)
    return out


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _product(
    tokens,
    token_scales,
    matrix,
    matrix_scales,
    narrow,
    high,
    bias,
    out,
    count,
    rows,
    width,
    share,
    narrow_stride,
    high_stride,
    COLUMNS: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
) -> None:
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    part = tl.program_id(1)
    token = (tl.program_id(2) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)).to(tl.int64)
    real_row, real_token = row < rows, token < count
    total = tl.zeros((BLOCK_TOKENS, BLOCK_ROWS), tl.float32)
    last = tl.minimum((part + 1) * share, width)
    for start in range(part * share, last, BLOCK_INPUTS):
        step = start + tl.arange(0, BLOCK_INPUTS)
        inside = step < width  # a share ends at a block boundary
        x = tl.load(
            tokens + token[:, None] * width + step[None, :], mask=real_token[:, None] & inside[None, :], other=0.0
        )
        w = tl.load(matrix + row[None, :] * width + step[:, None], mask=real_row[None, :] & inside[:, None], other=0.0)
        # Tensor cores keep few bits of a sum of float8 products, so each block's sum is added in float32.
        total = tl.dot(x, w, total, max_num_imprecise_acc=BLOCK_INPUTS)
    total *= tl.load(token_scales + token, mask=real_token, other=0.0)[:, None]
    total *= tl.load(matrix_scales + row, mask=real_row, other=0.0)[None, :]
    if part == 0:
        for start in range(0, COLUMNS, COLUMN_BLOCK):
            column = start + tl.arange(0, COLUMN_BLOCK)
            a = tl.load(narrow + token[:, None] * narrow_stride + column[None, :], mask=real_token[:, None], other=0.0)
            b = tl.load(high + row[None, :] * high_stride + column[:, None], mask=real_row[None, :], other=0.0)
            total = tl.dot(a, b, total)
        if BIAS:
            total += tl.load(bias + row, mask=real_row, other=0.0).to(tl.float32)[None, :]
    offset = (part * count + token[:, None]) * rows + row[None, :]
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=real_token[:, None] & real_row[None, :])


def product(
    tokens: Fp8Matrix,
    matrix: Fp8Matrix,
    narrow: torch.Tensor,
    high: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    parts: bool = False,
) -> torch.Tensor:
    """Return tokens matrix^T + narrow high^T + bias, [n, rows]. The adapter's `narrow` [n, columns] and `high` [rows,
    columns] are bfloat16.

    With `parts` the result can be [parts, n, rows], which the reader sums.
    """
    count, (rows, width) = len(tokens.values), matrix.values.shape
    if count > FEW_TOKENS:
        out: torch.Tensor = torch._scaled_mm(
            tokens.values,
            matrix.values.t(),
            scale_a=tokens.scales,
            scale_b=matrix.scales.t(),
            bias=bias,
            out_dtype=narrow.dtype,
            use_fast_accum=True,
        )
        return out.addmm_(narrow, high.t()) if narrow.shape[1] else out
    if high.stride(1) != 1:
        high = high.contiguous()
    tile = TILE_OF_PARTS if parts else _tile(rows)
    blocks = triton.cdiv(rows, tile.rows)
    cuts = min(triton.cdiv(2 * MULTIPROCESSORS, blocks), MAX_PARTS) if parts else 1
    share = round_up(triton.cdiv(width, cuts), tile.inputs)
    cuts = triton.cdiv(width, share)
    shape = (cuts, count, rows) if parts else (count, rows)
    out = torch.empty(shape, dtype=torch.float32 if parts else narrow.dtype, device=narrow.device)
    _product[(blocks, cuts, triton.cdiv(count, BLOCK_TOKENS))](
        tokens.values,
        tokens.scales,
        matrix.values,
        matrix.scales,
        narrow,
        high,
        narrow if bias is None else bias,
        out,
        count,
        rows,
        width,
        share,
        narrow.stride(0),
        high.stride(0),
        COLUMNS=narrow.shape[1],
        COLUMN_BLOCK=COLUMN_MULTIPLE,
        BIAS=bias is not None,
        BLOCK_TOKENS=BLOCK_TOKENS,
        BLOCK_ROWS=tile.rows,
        BLOCK_INPUTS=tile.inputs,
        num_warps=tile.warps,
        num_stages=STAGES,
    )
    return out


def _tile(rows: int) -> Tile:
    return next((tile for tile in TILES if rows >= tile.rows * MULTIPROCESSORS), TILES[-1])
