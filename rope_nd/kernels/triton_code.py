"""The Triton code behind `triton.py`, a file of its own because it needs triton when it is imported.

A program turns BLOCK_N tokens. It reads their cos and sin once, [N, 1, P] (or [N, BLOCK_H, P] where heads differ), keeps them in
registers and goes through `share` samples (q and k of a packed projection are two) and their heads, BLOCK_H at a time:

    y1 = x1 cos - x2 sin        y2 = x1 sin + x2 cos        in float32, rounded once to the output's type

Strides are counted in UNIT elements, so that the compiler knows how far addresses are aligned. Offsets are 64 bits wide.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped,import-not-found"

import triton
import triton.language as tl

STRIDES = [f"{t}_{s}" for t in "xoyt" for s in ("group", "sample", "head", "token")]
SIZES = ["groups", "samples", "heads", "tokens", "prefix", "first", "share"]


@triton.jit
def _program(samples, heads, tokens, first, share, BLOCK_N, BLOCK_H, PER_HEAD):
    """Which part this program has: tokens [N], the first head, the first sample and where they stop, the number of its chunk."""
    blocks = tl.cdiv(tokens - first, BLOCK_N)
    columns = blocks * (heads // BLOCK_H) if PER_HEAD else blocks
    chunk = tl.program_id(0) // columns
    column = tl.program_id(0) % columns
    token = first + (column % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = chunk * share
    head = (column // blocks) * BLOCK_H
    return token, head, start, tl.minimum(start + share, samples), chunk


@triton.jit
def _rows(base, sample, groups, head, token, by_group, by_sample, by_head, by_token, UNIT, BLOCK_H):
    """Addresses of the first channel `[N, H, 1]`."""
    heads = (head + tl.arange(0, BLOCK_H)).to(tl.int64)
    base += tl.cast(sample % groups, tl.int64) * (by_group * UNIT) + tl.cast(sample // groups, tl.int64) * (by_sample * UNIT)
    return base + token.to(tl.int64)[:, None, None] * (by_token * UNIT) + heads[None, :, None] * (by_head * UNIT)


@triton.jit
def _table(base, sample, groups, head, row, by_sample, by_head, by_token, mask, P, BLOCK_P, BLOCK_H, UNIT, PER_HEAD):
    """cos or sin of these tokens `[N, 1, P]`, `[N, H, P]` where heads differ."""
    heads = (head + tl.arange(0, BLOCK_H)).to(tl.int64)[None, :, None] if PER_HEAD else tl.zeros([1, 1, 1], tl.int64)
    base += tl.cast(sample // groups, tl.int64) * (by_sample * UNIT)
    pair = tl.arange(0, BLOCK_P)[None, None, :]
    at = base + row.to(tl.int64)[:, None, None] * (by_token * UNIT) + heads * (by_head * UNIT) + pair
    return tl.load(at, mask & (pair < P), 0)


@triton.jit
def _read(rows, mask, P, BLOCK_P, HALF):
    """Both channels of each pair, `[N, H, P]` twice, float32."""
    if HALF:
        pair = tl.arange(0, BLOCK_P)[None, None, :]
        kept = mask & (pair < P)
        a, b = tl.load(rows + pair, kept, 0).to(tl.float32), tl.load(rows + P + pair, kept, 0).to(tl.float32)
    else:
        channel = tl.arange(0, 2 * BLOCK_P)[None, None, :]
        both = tl.load(rows + channel, mask & (channel < 2 * P), 0).to(tl.float32)
        a, b = tl.split(tl.reshape(both, (both.shape[0], both.shape[1], BLOCK_P, 2)))
    return a, b


@triton.jit
def _write(rows, a, b, mask, P, BLOCK_P, HALF):
    kind = rows.dtype.element_ty
    if HALF:
        pair = tl.arange(0, BLOCK_P)[None, None, :]
        kept = mask & (pair < P)
        tl.store(rows + pair, a.to(kind), kept)
        tl.store(rows + P + pair, b.to(kind), kept)
    else:
        channel = tl.arange(0, 2 * BLOCK_P)[None, None, :]
        both = tl.reshape(tl.join(a.to(kind), b.to(kind)), (a.shape[0], a.shape[1], 2 * BLOCK_P))
        tl.store(rows + channel, both, mask & (channel < 2 * P))


@triton.jit
def _copy_rest(source, target, mask, P, D, BLOCK_R):
    """Channels from 2P on pass through."""
    channel = 2 * P + tl.arange(0, BLOCK_R)[None, None, :]
    tl.store(target + channel, tl.load(source + channel, mask & (channel < D), 0), mask & (channel < D))


@triton.jit
def _add_up(sums, total, chunk, table_heads, places, row, rows, mask, P, BLOCK_P):
    """Store `[N, H|1, P]` in the chunk's part of `sums`."""
    pair = tl.arange(0, BLOCK_P)[None, None, :]
    table = (chunk.to(tl.int64) * table_heads + places) * rows  # [H|1]
    tl.store(sums + (table[None, :, None] + row[:, None, None]) * P + pair, total, mask & (pair < P))


@triton.jit(do_not_specialize=[*SIZES, *STRIDES])
def turn(
    x,
    out,
    y,
    sums,
    cos,
    sin,
    x_group,
    x_sample,
    x_head,
    x_token,
    o_group,
    o_sample,
    o_head,
    o_token,
    y_group,
    y_sample,
    y_head,
    y_token,
    t_sample,
    t_head,
    t_token,
    groups,
    samples,
    heads,
    tokens,
    prefix,
    first,
    share,
    P: tl.constexpr,
    D: tl.constexpr,
    UNIT: tl.constexpr,
    TABLE_UNIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    HALF: tl.constexpr,
    INVERSE: tl.constexpr,
    PER_HEAD: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """out = x turned, and with GRADIENT, in the same pass, what that says about the angles.

    `first`: 0, or `prefix` where the prefix tokens are already in place; BLOCK_R: 0 where the channels beyond 2P are.
    GRADIENT: x is the gradient of the output y that turning the other way gave; a program adds up x2 y1 - x1 y2 over its samples
    (and heads, where they share a table) in their order, into its own chunk of `sums` `[chunks, H|1, N - prefix, P]`.
    """
    token, head, start, stop, chunk = _program(samples, heads, tokens, first, share, BLOCK_N, BLOCK_H, PER_HEAD)
    there = (token < tokens)[:, None, None]
    turned = (token >= prefix)[:, None, None]
    row = token - prefix
    c = _table(cos, start, groups, head, row, t_sample, t_head, t_token, there & turned, P, BLOCK_P, BLOCK_H, TABLE_UNIT, PER_HEAD)
    s = _table(sin, start, groups, head, row, t_sample, t_head, t_token, there & turned, P, BLOCK_P, BLOCK_H, TABLE_UNIT, PER_HEAD)
    if INVERSE:
        s = -s
    total = tl.zeros([BLOCK_N, BLOCK_H, BLOCK_P], tl.float32)
    for sample in range(start, stop):
        for h in range(head, head + BLOCK_H if PER_HEAD else heads, BLOCK_H):
            source = _rows(x, sample, groups, h, token, x_group, x_sample, x_head, x_token, UNIT, BLOCK_H)
            target = _rows(out, sample, groups, h, token, o_group, o_sample, o_head, o_token, UNIT, BLOCK_H)
            a, b = _read(source, there, P, BLOCK_P, HALF)
            if GRADIENT:
                kept = _rows(y, sample, groups, h, token, y_group, y_sample, y_head, y_token, UNIT, BLOCK_H)
                y1, y2 = _read(kept, there & turned, P, BLOCK_P, HALF)
                total += b * y1 - a * y2
            _write(target, tl.where(turned, a * c - b * s, a), tl.where(turned, a * s + b * c, b), there, P, BLOCK_P, HALF)
            if BLOCK_R > 0:
                _copy_rest(source, target, there, P, D, BLOCK_R)
    if GRADIENT:
        total = total if INVERSE else -total
        if PER_HEAD:
            _add_up(sums, total, chunk, heads, head + tl.arange(0, BLOCK_H), row, tokens - prefix, there & turned, P, BLOCK_P)
        else:
            total = tl.sum(total, axis=1, keep_dims=True)
            _add_up(sums, total, chunk, 1, tl.arange(0, 1), row, tokens - prefix, there & turned, P, BLOCK_P)
