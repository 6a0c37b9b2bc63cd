"""Triton kernels of the decode step: what would otherwise be many small launches, and attention over ragged rows.

Imported only where there is a GPU (Triton comes with torch's CUDA builds). Head dimensions are powers of two, at
least 16.
"""

import torch
import triton
import triton.language as tl

from training.engine.weights.paged_cache import PAGE

HEADS_A_PROGRAM = 8
MIN_PROGRAMS = 1024
"""Attention is cut along the keys until this many programs share the work: some for each multiprocessor, so that rows
of different lengths even out."""


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_store(
    joint,
    gains,
    turns,
    positions,
    places,
    keys,
    values,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, DIM)
    inside = (head < HEADS + 2 * KV_HEADS)[:, None]
    source = joint + token * (HEADS + 2 * KV_HEADS) * DIM + head[:, None] * DIM + dim[None, :]
    read = tl.load(source, mask=inside, other=0.0)
    raw = read.to(tl.float32)
    turned = (head < HEADS + KV_HEADS)[:, None]
    x = raw
    if NORMED:
        x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=1)[:, None] / DIM + eps))
        x = x * tl.load(gains + head[:, None] * DIM + dim[None, :], mask=turned, other=0.0).to(tl.float32)
    half = tl.arange(0, DIM // 2)
    turn = turns + tl.load(positions + token) * DIM + 2 * half
    cos, sin = tl.load(turn)[None, :], tl.load(turn + 1)[None, :]
    even, odd = tl.split(tl.reshape(x, (BLOCK, DIM // 2, 2)))
    x = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (BLOCK, DIM))
    x = tl.where(turned, x, raw).to(read.dtype)
    tl.store(source, x, mask=inside & turned)
    place = tl.load(places + token) * KV_HEADS * DIM
    key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    tl.store(keys + place + (head - HEADS)[:, None] * DIM + dim[None, :], x, mask=key[:, None])
    value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    tl.store(values + place + (head - HEADS - KV_HEADS)[:, None] * DIM + dim[None, :], x, mask=value[:, None])


def rotate_and_store(
    joint: torch.Tensor,
    gains: torch.Tensor | None,
    turns: torch.Tensor,
    positions: torch.Tensor,
    places: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    eps: float,
) -> None:
    """Norm (where `gains` are given) and rotate queries and keys in place, and put keys and values into the cache.

    `joint` is [n, heads + 2 * kv_heads, D]; `gains` [heads + kv_heads, D]; `turns` [positions, D/2, 2] float32: cosine
    and sine for each pair of neighbours; `positions` and `places` [n] int64: where a token stands in its sequence and
    in the cache; `keys` and `values` [places, kv_heads, D].
    """
    count, heads, dim = joint.shape
    kv_heads = keys.shape[-2]
    _rotate_and_store[(count, triton.cdiv(heads, HEADS_A_PROGRAM))](
        joint,
        joint if gains is None else gains,
        turns,
        positions,
        places,
        keys,
        values,
        eps,
        HEADS=heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        NORMED=gains is not None,
        BLOCK=HEADS_A_PROGRAM,
        num_warps=2,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(
    query,
    keys,
    values,
    positions,
    tables,
    out,
    weight,
    table_stride,
    query_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row).to(tl.int32) + 1
    share = tl.cdiv(tl.cdiv(length, PARTS), BLOCK) * BLOCK
    first = part * share
    last = tl.minimum(first + share, length)
    member, dim, step = tl.arange(0, GROUP_PAD), tl.arange(0, DIM), tl.arange(0, BLOCK)
    real = (member < GROUP)[:, None]
    q = tl.load(
        query + row * query_stride + (kv_head * GROUP + member[:, None]) * DIM + dim[None, :], mask=real, other=0.0
    )
    base = kv_head * DIM + dim[None, :]
    top = tl.full((GROUP_PAD,), -1e30, tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    mixed = tl.zeros((GROUP_PAD, DIM), tl.float32)
    for start in range(first, last, BLOCK):
        token = start + step
        seen = token < last
        page = tl.load(tables + row * table_stride + start // BLOCK).to(tl.int64)
        place = base + (page * BLOCK + step)[:, None] * (KV_HEADS * DIM)
        k = tl.load(keys + place, mask=seen[:, None], other=0.0)
        scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)), -1e30)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - higher)
        weights = tl.exp(scores - higher[:, None])
        v = tl.load(values + place, mask=seen[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * shrink + tl.sum(weights, axis=1)
        top = higher
    place = ((row * KV_HEADS + kv_head) * PARTS + part) * GROUP + member
    tl.store(out + place[:, None] * DIM + dim[None, :], mixed / tl.maximum(total, 1e-30)[:, None], mask=real)
    tl.store(weight + place, tl.where(total > 0, top + tl.log(tl.maximum(total, 1e-30)), -1e30), mask=member < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _join_parts(out, weight, joined, GROUP: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr) -> None:
    pair, member = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, dim = tl.arange(0, PARTS), tl.arange(0, DIM)
    place = (pair * PARTS + part) * GROUP + member
    logs = tl.load(weight + place)
    shares = tl.exp(logs - tl.max(logs, axis=0))
    shares = shares / tl.sum(shares, axis=0)
    mixed = tl.sum(tl.load(out + place[:, None] * DIM + dim[None, :]) * shares[:, None], axis=0)
    tl.store(joined + (pair * GROUP + member) * DIM + dim, mixed.to(joined.dtype.element_ty))


def decode_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor
) -> torch.Tensor:
    """softmax(query keys) values for one query a row, over the tokens at 0 ... `positions` ([R]) of its row.

    `query` is [R, heads, D], scaled already, the last two dimensions contiguous; `keys` and `values` [tokens of all
    pages, kv_heads, D]; `tables` [R, pages of a row] int32. Returns [R, heads * D], 0 where a position is -1. Reads
    each row's own tokens only (Dao et al. 2023, "Flash-Decoding").
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    parts = min(64, triton.next_power_of_2(triton.cdiv(MIN_PROGRAMS, rows * kv_heads)))
    out = torch.empty((rows, kv_heads, parts, group, dim), dtype=torch.float32, device=query.device)
    weight = torch.empty((rows, kv_heads, parts, group), dtype=torch.float32, device=query.device)
    _attend_part[(rows, kv_heads, parts)](
        query,
        keys,
        values,
        positions,
        tables,
        out,
        weight,
        tables.stride(0),
        query.stride(0),
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_PAD=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        PARTS=parts,
        BLOCK=PAGE,
        num_warps=4,
        num_stages=3,
    )
    joined = torch.empty((rows, heads * dim), dtype=query.dtype, device=query.device)
    _join_parts[(rows * kv_heads, group)](out, weight, joined, GROUP=group, DIM=dim, PARTS=parts, num_warps=2)
    return joined


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(hidden, change, out, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr) -> None:
    row, column = tl.program_id(0).to(tl.int64) * width, tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(hidden + row + column, mask=inside, other=0.0)
    if ADD:
        x += tl.load(change + row + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(hidden + row + column, x, mask=inside)
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps))
    tl.store(out + row + column, x.to(out.dtype.element_ty), mask=inside)


def add_norm(hidden: torch.Tensor, change: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Add `change` [n, H] to `hidden` [n, H] (float32) in place, and return its RMSNorm without gain in bfloat16."""
    out = torch.empty(hidden.shape, dtype=torch.bfloat16, device=hidden.device)
    count, width = hidden.shape
    _add_norm[(count,)](
        hidden,
        hidden if change is None else change,
        out,
        width,
        eps,
        ADD=change is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8 if width > 2048 else 4,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul(gate, up, out, stride, width, BLOCK: tl.constexpr) -> None:
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(gate + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul_backward(gate, up, grad, grad_gate, grad_up, width, BLOCK: tl.constexpr) -> None:
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * width + column, column < width
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.sigmoid(g)
    tl.store(grad_up + at, (d * g * slope).to(grad_up.dtype.element_ty), mask=inside)
    tl.store(grad_gate + at, (d * u * slope * (1 + g * (1 - slope))).to(grad_gate.dtype.element_ty), mask=inside)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, [n, width] each: whole matrices, or column ranges of one. No gradient: see SiluMul."""
    count, width = gate.shape
    out = torch.empty((count, width), dtype=gate.dtype, device=gate.device)
    _silu_mul[(count, triton.cdiv(width, 1024))](gate, up, out, gate.stride(0), width, BLOCK=1024)
    return out


class SiluMul(torch.autograd.Function):
    """silu(gate) * up of contiguous [n, width], which keeps nothing for its backward but the two."""

    @staticmethod
    def forward(ctx, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return silu_mul(gate, up)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        count, width = gate.shape
        _silu_mul_backward[(count, triton.cdiv(width, 1024))](
            gate, up, grad.contiguous(), grad_gate, grad_up, width, BLOCK=1024
        )
        return grad_gate, grad_up
