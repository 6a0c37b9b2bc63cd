"""Triton kernels of the decode step, which replace many small launches, and attention over ragged rows.

Imported only if there is a GPU (Triton comes with torch's CUDA builds). Head dimensions are powers of two, at least 16.
"""

import torch
import triton
import triton.language as tl

from learnloop_service.training.engine.weights.fp8 import LARGEST, SMALLEST_ROW, Fp8Matrix
from learnloop_service.training.engine.weights.paged_cache import PAGE
from learnloop_service.training.engine.weights.shared_prefix import SharedPrefix

HEADS_A_PROGRAM = 8
MIN_PROGRAMS = 1024
"""Number of programs into which attention is split along the keys. There are several per multiprocessor, so that rows
of different lengths even out."""
SHARED_QUERIES = 64
"""Number of queries that one program compares with the beginning shared by all rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(
    joint,
    target,
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
    STORED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    half = tl.arange(0, DIM // 2)
    inside, turned = (head < HEADS + 2 * KV_HEADS)[:, None], (head < HEADS + KV_HEADS)[:, None]
    at = head[:, None] * DIM + half[None, :]
    source = joint + token * (HEADS + 2 * KV_HEADS) * DIM + at
    low, high = tl.load(source, mask=inside, other=0.0), tl.load(source + DIM // 2, mask=inside, other=0.0)
    x, y = low.to(tl.float32), high.to(tl.float32)
    if NORMED:
        scale = 1.0 / tl.sqrt((tl.sum(x * x, axis=1) + tl.sum(y * y, axis=1))[:, None] / DIM + eps)
        x = x * scale * tl.load(gains + at, mask=turned, other=0.0).to(tl.float32)
        y = y * scale * tl.load(gains + at + DIM // 2, mask=turned, other=0.0).to(tl.float32)
    turn = turns + tl.load(positions + token) * DIM + 2 * half
    cos, sin = tl.load(turn)[None, :], tl.load(turn + 1)[None, :]
    low = tl.where(turned, (x * cos - y * sin).to(low.dtype), low)
    high = tl.where(turned, (y * cos + x * sin).to(high.dtype), high)
    result = target + token * (HEADS + 2 * KV_HEADS) * DIM + at
    tl.store(result, low, mask=inside)
    tl.store(result + DIM // 2, high, mask=inside)
    if STORED:
        offset = tl.load(places + token) * KV_HEADS * DIM + half[None, :]
        key = (head >= HEADS) & (head < HEADS + KV_HEADS)
        stored = keys + offset + (head - HEADS)[:, None] * DIM
        tl.store(stored, low, mask=key[:, None])
        tl.store(stored + DIM // 2, high, mask=key[:, None])
        value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
        stored = values + offset + (head - HEADS - KV_HEADS)[:, None] * DIM
        tl.store(stored, low, mask=value[:, None])
        tl.store(stored + DIM // 2, high, mask=value[:, None])


def rotate(
    joint: torch.Tensor,
    gains: torch.Tensor | None,
    turns: torch.Tensor,
    positions: torch.Tensor,
    kv_heads: int,
    eps: float,
    *,
    store: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    keep: bool = False,
) -> torch.Tensor:
    """Norm (if `gains` are given) and rotate queries and keys, in place unless `keep`.

    `joint` is [n, heads + 2 * kv_heads, D]; `gains` [heads + kv_heads, D]; `turns` [positions, D/2, 2] float32: cosine
    and sine for a head's dimensions i and i + D/2; `positions` [n] int64. `store` writes keys and values into a cache:
    `places` [n] int64, and keys and values [places, kv_heads, D].
    """
    count, heads, dim = joint.shape
    target = torch.empty_like(joint) if keep else joint
    places, keys, values = store or (positions, joint, joint)
    _rotate[(count, triton.cdiv(heads, HEADS_A_PROGRAM))](
        joint,
        target,
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
        STORED=store is not None,
        BLOCK=HEADS_A_PROGRAM,
        num_warps=2,
    )
    return target


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_backward(
    query,
    key,
    value,
    raw,
    gains,
    turns,
    positions,
    out,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    half = tl.arange(0, DIM // 2)
    inside, turned = (head < HEADS + 2 * KV_HEADS)[:, None], (head < HEADS + KV_HEADS)[:, None]
    is_query, is_value = (head < HEADS)[:, None], (head >= HEADS + KV_HEADS)[:, None]
    q = query + token * HEADS * DIM + head[:, None] * DIM + half[None, :]
    k = key + token * KV_HEADS * DIM + (head - HEADS)[:, None] * DIM + half[None, :]
    v = value + token * KV_HEADS * DIM + (head - HEADS - KV_HEADS)[:, None] * DIM + half[None, :]
    is_key, is_value = turned & ~is_query, is_value & inside
    a = tl.load(q, mask=is_query, other=0.0).to(tl.float32)
    a += tl.load(k, mask=is_key, other=0.0).to(tl.float32) + tl.load(v, mask=is_value, other=0.0).to(tl.float32)
    q, k, v = q + DIM // 2, k + DIM // 2, v + DIM // 2
    b = tl.load(q, mask=is_query, other=0.0).to(tl.float32)
    b += tl.load(k, mask=is_key, other=0.0).to(tl.float32) + tl.load(v, mask=is_value, other=0.0).to(tl.float32)
    turn = turns + tl.load(positions + token) * DIM + 2 * half
    cos, sin = tl.load(turn)[None, :], tl.load(turn + 1)[None, :]
    c, d = a * cos + b * sin, b * cos - a * sin
    at = head[:, None] * DIM + half[None, :]
    offset = token * (HEADS + 2 * KV_HEADS) * DIM + at
    if NORMED:
        x = tl.load(raw + offset, mask=turned, other=0.0).to(tl.float32)
        y = tl.load(raw + offset + DIM // 2, mask=turned, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt((tl.sum(x * x, axis=1) + tl.sum(y * y, axis=1))[:, None] / DIM + eps)
        x, y = x * scale, y * scale
        c = c * tl.load(gains + at, mask=turned, other=0.0).to(tl.float32)
        d = d * tl.load(gains + at + DIM // 2, mask=turned, other=0.0).to(tl.float32)
        along = (tl.sum(c * x, axis=1) + tl.sum(d * y, axis=1))[:, None] / DIM
        c, d = scale * (c - x * along), scale * (d - y * along)
    tl.store(out + offset, tl.where(turned, c, a).to(out.dtype.element_ty), mask=inside)
    tl.store(out + offset + DIM // 2, tl.where(turned, d, b).to(out.dtype.element_ty), mask=inside)


def rotate_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    raw: torch.Tensor,
    gains: torch.Tensor | None,
    turns: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return the gradient [n, heads + 2 * kv_heads, D] of `rotate`'s input, `raw`, from those of its queries [n, heads,
    D], keys and values [n, kv_heads, D] (all contiguous)."""
    out = torch.empty_like(raw)
    count, heads, dim = raw.shape
    _rotate_backward[(count, triton.cdiv(heads, HEADS_A_PROGRAM))](
        query,
        key,
        value,
        raw,
        raw if gains is None else gains,
        turns,
        positions,
        out,
        eps,
        HEADS=query.shape[1],
        KV_HEADS=key.shape[1],
        DIM=dim,
        NORMED=gains is not None,
        BLOCK=HEADS_A_PROGRAM,
        num_warps=2,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(
    query,
    keys,
    values,
    positions,
    tables,
    shared,
    out,
    weight,
    table_stride,
    query_stride,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length, begin = tl.load(positions + row).to(tl.int32) + 1, tl.load(shared)
    oldest = begin
    if WINDOW:
        oldest = tl.maximum(length - WINDOW, 0)
        begin = oldest // BLOCK * BLOCK
    share = tl.cdiv(tl.cdiv(length - begin, PARTS), BLOCK) * BLOCK
    first = begin + part * share
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
        visible = (token >= oldest) & (token < last)
        page = tl.load(tables + row * table_stride + start // BLOCK).to(tl.int64)
        offset = base + (page * BLOCK + step)[:, None] * (KV_HEADS * DIM)
        k = tl.load(keys + offset, mask=visible[:, None], other=0.0)
        scores = tl.where(visible[None, :], tl.dot(q, tl.trans(k)) * scale, -1e30)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - higher)
        weights = tl.exp(scores - higher[:, None])
        v = tl.load(values + offset, mask=visible[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * shrink + tl.sum(weights, axis=1)
        top = higher
    offset = ((row * KV_HEADS + kv_head) * 2 * PARTS + part) * GROUP + member
    _store_part(out, weight, offset, mixed, total, top, member < GROUP, DIM)


@triton.jit  # type: ignore[untyped-decorator]
def _attend_shared_part(
    query,
    keys,
    values,
    positions,
    table,
    shared,
    out,
    weight,
    query_stride,
    queries,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    kv_head, part = tl.program_id(1), tl.program_id(2)
    number, dim, step = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, DIM), tl.arange(0, BLOCK)
    row, member = (number // GROUP).to(tl.int64), number % GROUP
    real = number < queries
    tokens = tl.load(shared)
    share = tl.cdiv(tl.cdiv(tokens, PARTS), BLOCK) * BLOCK
    first = part * share
    q = tl.load(
        query + row[:, None] * query_stride + (kv_head * GROUP + member[:, None]) * DIM + dim[None, :],
        mask=real[:, None],
        other=0.0,
    )
    base = kv_head * DIM + dim[None, :]
    top = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, DIM), tl.float32)
    for start in range(first, tl.minimum(first + share, tokens), BLOCK):  # whole pages
        page = tl.load(table + start // BLOCK).to(tl.int64)
        offset = base + (page * BLOCK + step)[:, None] * (KV_HEADS * DIM)
        k = tl.load(keys + offset)
        scores = tl.dot(q, tl.trans(k)) * scale
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - higher)
        weights = tl.exp(scores - higher[:, None])
        v = tl.load(values + offset)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * shrink + tl.sum(weights, axis=1)
        top = higher
    active = tl.load(positions + row, mask=real, other=-1) >= 0
    offset = ((row * KV_HEADS + kv_head) * 2 * PARTS + PARTS + part) * GROUP + member
    _store_part(out, weight, offset, mixed, tl.where(active, total, 0.0), top, real, DIM)


@triton.jit  # type: ignore[untyped-decorator]
def _store_part(out, weight, offset, mixed, total, top, real, DIM: tl.constexpr) -> None:
    """Store a part's attention result and the logarithm of its weight. A part without tokens gets the weight -1e30 and
    its result is not written. NaN stays NaN."""
    dim, some = tl.arange(0, DIM), total != 0
    safe = tl.where(some, total, 1.0)
    tl.store(out + offset[:, None] * DIM + dim[None, :], mixed / safe[:, None], mask=(real & some)[:, None])
    tl.store(weight + offset, tl.where(some, top + tl.log(safe), -1e30), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _join_parts(
    out, weight, joined, stride, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr
) -> None:
    pair, member = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, dim = tl.arange(0, PARTS), tl.arange(0, DIM)
    offset = (pair * PARTS + part) * GROUP + member
    logs = tl.load(weight + offset)
    shares = tl.exp(logs - tl.max(logs, axis=0))
    shares = shares / tl.sum(shares, axis=0)
    parts = tl.load(out + offset[:, None] * DIM + dim[None, :], mask=(logs != -1e30)[:, None], other=0.0)
    mixed = tl.sum(parts * shares[:, None], axis=0)
    row, kv_head = pair // KV_HEADS, pair % KV_HEADS
    tl.store(joined + row * stride + (kv_head * GROUP + member) * DIM + dim, mixed.to(joined.dtype.element_ty))


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    tables: torch.Tensor,
    prefix: SharedPrefix,
    scale: float,
    joined: torch.Tensor,
    window: int | None = None,
) -> None:
    """Compute softmax(scale query keys) values for one query per row, over the tokens at 0 ... `positions` ([R]) of its
    row, or the last `window` of them.

    `query` is [R, heads, D], the last two dimensions contiguous; `keys` and `values` [tokens of all pages, kv_heads,
    D]; `tables` [R, pages of a row] int32, `prefix` their shared beginning; `joined` [R, heads * D] takes the result, 0
    where a position is -1. Each row's own tokens are read in parts (Dao et al. 2023, "Flash-Decoding"), and shared
    tokens in separate parts, once for all rows (Juravsky et al. 2024, "Hydragen").
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    parts = min(64, triton.next_power_of_2(triton.cdiv(MIN_PROGRAMS, rows * kv_heads)))
    if window is not None:
        prefix = prefix.without_tokens()  # a row's window can begin after it
    out = torch.empty((rows, kv_heads, 2 * parts, group, dim), dtype=torch.float32, device=query.device)
    weight = torch.empty((rows, kv_heads, 2 * parts, group), dtype=torch.float32, device=query.device)
    _attend_part[(rows, kv_heads, parts)](
        query,
        keys,
        values,
        positions,
        tables,
        prefix.tokens,
        out,
        weight,
        tables.stride(0),
        query.stride(0),
        scale,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_PAD=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        PARTS=parts,
        WINDOW=window or 0,
        BLOCK=PAGE,
        num_warps=4,
        num_stages=3,
    )
    _attend_shared_part[(triton.cdiv(rows * group, SHARED_QUERIES), kv_heads, parts)](
        query,
        keys,
        values,
        positions,
        prefix.table,
        prefix.tokens,
        out,
        weight,
        query.stride(0),
        rows * group,
        scale,
        KV_HEADS=kv_heads,
        GROUP=group,
        DIM=dim,
        PARTS=parts,
        QUERIES=SHARED_QUERIES,
        BLOCK=PAGE,
        num_warps=4,
        num_stages=2,
    )
    _join_parts[(rows * kv_heads, group)](
        out, weight, joined, joined.stride(0), KV_HEADS=kv_heads, GROUP=group, DIM=dim, PARTS=2 * parts, num_warps=2
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(
    hidden,
    change,
    gain,
    out,
    values,
    scales,
    part_stride,
    out_stride,
    width,
    eps,
    LARGEST: tl.constexpr,
    SMALLEST_ROW: tl.constexpr,
    PARTS: tl.constexpr,
    QUANTISED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    row, inside = token * width + column, column < width
    x = tl.load(hidden + row, mask=inside, other=0.0).to(tl.float32)
    if PARTS:
        for part in tl.static_range(PARTS):
            x += tl.load(change + part * part_stride + row, mask=inside, other=0.0).to(tl.float32)
        tl.store(hidden + row, x, mask=inside)
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps))
    x = x * tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, x.to(out.dtype.element_ty), mask=inside)
    if QUANTISED:
        scale = tl.maximum(tl.max(tl.abs(x), axis=0), SMALLEST_ROW) / LARGEST
        tl.store(scales + token, scale)
        tl.store(values + row, (x / scale).to(values.dtype.element_ty), mask=inside)


def add_norm(
    hidden: torch.Tensor,
    change: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    quantised: Fp8Matrix | None = None,
) -> None:
    """Add `change`, [n, H] or in parts [parts, n, H], to `hidden` [n, H] in place, and write its RMSNorm with `gain`
    [H] to `out` [n, H], whose rows may be strided, and to `quantised`."""
    count, width = hidden.shape
    parts = 0 if change is None else change.numel() // hidden.numel()
    _add_norm[(count,)](
        hidden,
        hidden if change is None else change,
        gain,
        out,
        quantised.values if quantised else out,
        quantised.scales if quantised else out,
        hidden.numel(),
        out.stride(0),
        width,
        eps,
        LARGEST=LARGEST,
        SMALLEST_ROW=SMALLEST_ROW,
        PARTS=parts,
        QUANTISED=quantised is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8 if width > 2048 else 4,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _norm_backward(hidden, gain, grad, grad_stride, onto, out, width, eps, BLOCK: tl.constexpr) -> None:
    token, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    row, inside = token * width + column, column < width
    x = tl.load(hidden + row, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + token * grad_stride + column, mask=inside, other=0.0).to(tl.float32)
    slope = slope * tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    x = x * scale
    slope = scale * (slope - x * (tl.sum(slope * x, axis=0) / width))
    slope += tl.load(onto + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, slope.to(out.dtype.element_ty), mask=inside)


def norm_backward(
    hidden: torch.Tensor, gain: torch.Tensor, eps: float, grad: torch.Tensor, onto: torch.Tensor
) -> torch.Tensor:
    """Return the gradient [n, H] of `hidden` from that of its norm, `grad` [n, H], plus its other gradients `onto` [n,
    H]."""
    out = torch.empty_like(onto)
    count, width = hidden.shape
    _norm_backward[(count,)](
        hidden,
        gain,
        grad,
        grad.stride(0),
        onto,
        out,
        width,
        eps,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8 if width > 2048 else 4,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul(gate, up, out, stride, out_stride, width, BLOCK: tl.constexpr) -> None:
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(gate + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul_backward(gate, up, grad, grad_gate, grad_up, stride, grad_stride, width, BLOCK: tl.constexpr) -> None:
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = token * stride + column, column < width
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(grad + token * grad_stride + column, mask=inside, other=0.0).to(tl.float32)
    slope = tl.sigmoid(g)
    tl.store(grad_up + at, (d * g * slope).to(grad_up.dtype.element_ty), mask=inside)
    tl.store(grad_gate + at, (d * u * slope * (1 + g * (1 - slope))).to(grad_gate.dtype.element_ty), mask=inside)


def silu_mul(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Write silu(gate) * up to `out`, whose rows may be strided. Gate and up are [n, width] each and are both whole
    matrices or both column ranges of one. For gradients see SiluMul."""
    count, width = gate.shape
    if out is None:
        out = torch.empty((count, width), dtype=gate.dtype, device=gate.device)
    _silu_mul[(count, triton.cdiv(width, 1024))](gate, up, out, gate.stride(0), out.stride(0), width, BLOCK=1024)
    return out


def silu_mul_backward(
    gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor, grad_gate: torch.Tensor, grad_up: torch.Tensor
) -> None:
    """Write the gradients of `gate` and `up` [n, width] from that of their product, in the row layout of `gate` and
    `up`."""
    count, width = gate.shape
    _silu_mul_backward[(count, triton.cdiv(width, 1024))](
        gate, up, grad, grad_gate, grad_up, gate.stride(0), grad.stride(0), width, BLOCK=1024
    )


class SiluMul(torch.autograd.Function):
    """Compute silu(gate) * up of contiguous [n, width], keeping only these two for the backward pass."""

    @staticmethod
    def forward(ctx, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return silu_mul(gate, up)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        silu_mul_backward(gate, up, grad.contiguous(), grad_gate, grad_up)
        return grad_gate, grad_up
