"""One fused kernel for GPUs, in Triton: one read and one write of the queries and keys, tables read once for all heads of a token.

`turn` is the raw operation, the same as every backend's. Beside it, registered by `register()` on first use so that importing
rope_nd loads no triton:

    torch.ops.rope_nd.turn(x, cos, sin, layout, prefix, inverse) -> y       differentiable in x and the tables
    torch.ops.rope_nd.turn_back(g, y, cos, sin, layout, prefix, inverse)    -> (gradient of x, gradient of the angles)
    torch.ops.rope_nd.turn_packed_(qkv, cos, sin, layout, prefix, inverse)  q and k of `[B, N, 3, H, D]` in place, no autograd

x is `[B, H, N, D]`, or `[G, B, H, N, D]` for G that share their tables, as q and k of a packed projection do:
`qkv.permute(2, 0, 3, 1, 4)[:2]` is turned by one launch.

Backward. The gradient of x is the opposite rotation. That of an angle is g2 y1 - g1 y2, from the output y, which attention keeps
anyway; it reaches the tables as -sin and cos times it. This is the derivative along the angle, all there is for tables made of
angles; what would change cos² + sin² is left out. The sum over samples (and heads) is in float32, in a fixed order.

Sizes, by reasoning, not measured. A program of four warps reads 8 KiB at a time, four loads of 16 bytes a thread. An H200 moves
4.8 TB/s over 132 processors at some 0.7 µs of latency: 25 KiB in flight each, half of it reads, so that two programs a processor
would do; the compiler needs up to 96 registers a thread for 64 channels, which lets five run. Where the heads differ, or the
gradient is summed, a program goes through SHARE samples, so that its tables (or its sums), twice the bytes of x in bfloat16, are
moved once for eight. The gradient reads two tensors, 4 KiB of each.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .._check import choose

Some = tuple[Tensor, ...]
Pair = tuple[Tensor, Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # channels a head
TILE = 8192  # bytes a program reads at a time
SHARE = 8  # samples that go through one table where heads differ or the gradient is summed


def supports(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str) -> bool:
    """CUDA tensors where triton is installed; float32, bfloat16, float16 with float32 tables; up to 256 channels a head."""
    return x.is_cuda and installed() and out.dtype == x.dtype and out.shape == x.shape and fits(x, cos, sin) and _dense(out)


def fits(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether shapes, strides and types are such that the kernel can take them."""
    if x.ndim not in (4, 5) or cos.ndim != 4 or x.dtype not in DTYPES or cos.dtype != torch.float32 or sin.dtype != torch.float32:
        return False
    batch, heads = x.shape[-4], x.shape[-3]
    small = 2 * cos.shape[-1] <= x.shape[-1] <= WIDEST
    broadcast = cos.shape[0] in (1, batch) and cos.shape[1] in (1, heads)
    return small and broadcast and sin.shape == cos.shape and sin.stride() == cos.stride() and _dense(x) and _dense(cos)


@cache
def installed() -> bool:
    """Is there a triton to import? (Not in wheels for the CPU, macOS and Windows.)"""
    return find_spec("triton") is not None


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
    """Turn x `[.., B, H, N, D]` into `out` (may be x) by the tables `[B|1, H|1, N - prefix, P]`; no autograd."""
    with torch.cuda.device_of(x):
        _launch(_code().turn, x, out, cos, sin, layout, prefix, inverse)


def turn_back(gs: Some, ys: Some, outs: Some, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Pair:
    """The gradients of cos and sin, summed over all, those of xs in `outs`: `ys` are xs turned (`inverse` as then).

    Where there are more gradients than `ys`, the last ones are copied.
    """
    for g, out in list(zip(gs, outs))[len(ys) :]:
        out.copy_(g)
    with torch.cuda.device_of(gs[0]):
        found = [_back(_code().turn, *three, cos, sin, layout, prefix, inverse) for three in zip(gs, ys, outs)]
    theta = torch.stack(found).sum(0) if len(found) > 1 else found[0]
    return -sin * theta, cos * theta


def turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Tensor:
    """`torch.ops.rope_nd.turn`, registered if it is not yet: differentiable, kept by torch.compile and torch.export."""
    register()
    return torch.ops.rope_nd.turn(x, cos, sin, layout, prefix, inverse)


def register() -> bool:
    """Make the operators known to PyTorch, once a process; also needed before an exported program that holds them is loaded."""
    return _registered()


# Compiled code runs it and does not trace it. torch.compiler.assume_constant_result sets the same, and loads triton on the way.
register._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _code() -> Any:
    return import_module(".triton_code", __package__)


def _dense(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] == 1


def _launch(
    kernel: Any, x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool, y: Tensor | None = None
) -> Tensor:
    """Start the kernel; the sums for the angles `[chunks, H|1, N - prefix, P]` where `y` is given, else `out`."""
    groups, batch, heads, tokens, channels = _five(x).shape
    if cos.shape[2] != tokens - prefix:
        raise ValueError(
            f"x has {tokens} tokens, {prefix} of them prefix, the tables {cos.shape[2]}: give prefix={tokens - cos.shape[2]}"
        )
    pairs, per_head, per_sample, gradient = cos.shape[-1], cos.shape[1] > 1, cos.shape[0] > 1, y is not None
    share = SHARE if not per_sample and (per_head or gradient) else groups
    chunks = _ceil(groups * batch, share)
    first, rest = (prefix, 0) if x is out else (0, channels - 2 * pairs)  # what is in place already is left alone
    block_p, block_h = _power(pairs), next(n for n in (4, 2, 1) if heads % n == 0)
    block_n = max(1, (TILE // 2 if gradient else TILE) // (x.element_size() * 2 * block_p * block_h))
    programs = chunks * _ceil(tokens - first, block_n) * (heads // block_h if per_head else 1)
    sums = cos.new_empty(chunks, cos.shape[1], tokens - prefix, pairs) if gradient else out
    strides, unit = _in_units([s for t in (x, out, *((y,) if y is not None else ())) for s in _strides(_five(t))])
    table, table_unit = _in_units(_strides(cos))
    if programs and channels:
        kernel[(programs,)](
            *(x, out, *((y, sums) if gradient else (cos, cos)), cos, sin),  # without gradient neither is touched
            *(*strides, *(() if gradient else (0, 0, 0, 0)), *table),
            *(groups, groups * batch, heads, tokens, prefix, first, share),
            P=pairs,
            D=channels,
            UNIT=unit,
            TABLE_UNIT=table_unit,
            BLOCK_N=block_n,
            BLOCK_H=block_h,
            BLOCK_P=block_p,
            BLOCK_R=_power(rest) if rest else 0,
            HALF=layout == "half",
            INVERSE=inverse,
            PER_HEAD=per_head,
            GRADIENT=gradient,
        )
    return sums


def _back(
    kernel: Any, g: Tensor, y: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool
) -> Tensor:
    sums = _launch(kernel, g, out, cos, sin, layout, prefix, not inverse, y)
    return sums if sums.shape[0] == cos.shape[0] else sums.sum(0, keepdim=True)  # [B|1, H|1, N - prefix, P]


def _five(x: Tensor) -> Tensor:
    return x if x.ndim == 5 else x[None]


def _strides(x: Tensor) -> list[int]:
    """Steps along all axes but the last, 0 where there is nothing to step over."""
    return [0 if n == 1 else s for n, s in zip(x.shape[:-1], x.stride()[:-1])]


def _in_units(strides: list[int]) -> tuple[list[int], int]:
    """Strides counted in the largest power of two, up to 16, that divides all: what the compiler may assume of addresses."""
    unit = next(u for u in (16, 8, 4, 2, 1) if all(s % u == 0 for s in strides))
    return [s // unit for s in strides], unit


def _ceil(n: int, by: int) -> int:
    return -(-n // by)


def _power(n: int) -> int:
    return 1 << (int(n) - 1).bit_length()


@cache
def _registered() -> bool:
    from torch.library import triton_op, wrap_triton

    from .triton_code import turn as kernel

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Tensor:
        x, cos, sin = _ready(x, cos, sin, layout)
        out = torch.empty_like(x)
        with torch.cuda.device_of(x):
            _launch(wrap_triton(kernel), x, out, cos, sin, layout, prefix, inverse)
        return out

    def back(g: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> tuple[Tensor, Tensor]:
        g, cos, sin = _ready(g, cos, sin, layout)
        out = torch.empty_like(g)
        with torch.cuda.device_of(g):
            return out, _back(wrap_triton(kernel), g, _along(y), out, cos, sin, layout, prefix, inverse)

    def packed(qkv: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
        x = qkv.permute(2, 0, 3, 1, 4)[:2]  # [2, B, H, N, D]
        if not _dense(x):
            raise ValueError(f"qkv of strides {qkv.stride()} cannot be turned in place: the channels must be next to each other")
        _, cos, sin = _ready(x, cos, sin, layout)
        with torch.cuda.device_of(x):
            _launch(wrap_triton(kernel), x, x, cos, sin, layout, prefix, inverse)

    op: Any = triton_op("rope_nd::turn", rotate, mutates_args=())
    op.register_fake(lambda x, *_: torch.empty_like(_along(x)))
    op.register_autograd(_backward, setup_context=_save)
    op = triton_op("rope_nd::turn_back", back, mutates_args=())
    op.register_fake(_back_shapes)
    op = triton_op("rope_nd::turn_packed_", packed, mutates_args=("qkv",))
    op.register_fake(lambda *_: None)
    return True


def _along(x: Tensor) -> Tensor:
    return x if _dense(x) else x.contiguous()


def _ready(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    """Channels next to each other, tables with four axes and of one stride; what the kernel cannot take is a ValueError."""
    choose("layout", layout, ("interleaved", "half"))
    cos, sin = (_along(t[(None,) * (4 - t.ndim)]) for t in (cos, sin))
    x = _along(x)
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    if not fits(x, cos, sin):
        raise ValueError(
            f"x {list(x.shape)} {x.dtype} with tables {list(cos.shape)} {cos.dtype}: give x [B, H, N, D] or [G, B, H, N, D] of at "
            f"most {WIDEST} channels in float32, bfloat16 or float16, and float32 tables [B|1, H|1, N - prefix, P] with 2P <= D"
        )
    return x, cos, sin


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, *ctx.options = inputs
    learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    ctx.save_for_backward(cos, sin, *((output,) if learned else ()))


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    (cos, sin, *y), (layout, prefix, inverse) = ctx.saved_tensors, ctx.options
    if not y:
        return torch.ops.rope_nd.turn(g, cos, sin, layout, prefix, not inverse), None, None, None, None, None
    along_x, along_angles = torch.ops.rope_nd.turn_back(g, y[0], cos, sin, layout, prefix, inverse)
    angles = along_angles.view_as(cos)
    return along_x, -sin * angles, cos * angles, None, None, None


def _back_shapes(g: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> tuple[Tensor, Tensor]:
    shape = (1,) * (4 - cos.ndim) + tuple(cos.shape)
    return torch.empty_like(_along(g)), cos.new_empty(shape)
