"""Turning with gradients: which path is taken, and what is kept for backward.

The gradient of a rotation is the opposite rotation, so inputs are never kept: the tables are, which q, k and layers share. Where
the tables need a gradient too, it comes from the turned output, which attention keeps anyway. With g the gradient of y:

    d theta = g2 y1 - g1 y2   summed over what shares the angle,      d cos = -sin d theta,   d sin = cos d theta

That is the derivative along the circle cos² + sin² = 1, all there is for tables made of angles. For other tables (`circle=False`)
the input is kept, and d cos = g1 x1 + g2 x2, d sin = g2 x1 - g1 x2.

Graphs (compile, export, ONNX, torch.func, forward mode, fake tensors) and devices without a kernel take the formula as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import increment_version

from . import kernels
from .kernels import eager
from .kernels.plain import direct, fits
from .kernels.real import halves

Some = tuple[Tensor, ...]
Three = tuple[Tensor, Tensor, Tensor]


class How(NamedTuple):
    """Layout, tokens that are left, the opposite angle or not; whether the tables are cosines and sines of angles."""

    layout: str
    prefix: int = 0
    inverse: bool = False
    circle: bool = False

    def opposite(self) -> How:
        return self._replace(inverse=not self.inverse)


def turn(xs: Some, cos: Tensor, sin: Tensor, how: How, dtype: torch.dtype | None = torch.float32) -> Some:
    """Each x `[.., N, D]` turned by the same tables `[.., N - prefix, P]`: same dtype, out of place, differentiable at will.

    `dtype` is the least precision of the arithmetic. Gradients of the tables are summed over all xs at once.
    """
    work = _work(xs[0], dtype)
    if any(x.ndim > 4 for x in xs) or not (direct(work, *xs, cos, sin) and all(fits(x.shape, cos, sin, how.prefix) for x in xs)):
        return tuple(_formula(x, cos, sin, how, _work(x, dtype)) for x in xs)
    tables = cos.to(work), sin.to(work)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*xs, cos, sin)):
        return Turn.apply(*tables, how, *xs)  # type: ignore[no-any-return]
    with torch.no_grad():
        return tuple(_raw(x, *tables, how) for x in xs)


def turn_packed_(
    qkv: Tensor, cos: Tensor, sin: Tensor, how: How, dtype: torch.dtype | None = torch.float32, factor: Tensor | None = None
) -> Three | None:
    """q, k, v `[B, H, N, D]` of `[B, N, 3, H, D]`, q and k turned where they lie and `factor` put on q; None where that cannot be.

    The gradient is one tensor in the shape of the projection, written once. Autograd takes `qkv` itself for what it was.
    """
    work = _work(qkv, dtype)
    batch, tokens, _, heads, channels = qkv.shape
    if not (direct(work, qkv, cos, sin) and fits((batch, heads, tokens, channels), cos, sin, how.prefix)):
        return None
    recording = torch.is_grad_enabled()
    learned = recording and (cos.requires_grad or sin.requires_grad)
    if (learned and not how.circle) or (recording and factor is not None and factor.requires_grad):
        return None
    tables = cos.to(work), sin.to(work)
    if learned or (recording and qkv.requires_grad):
        return TurnPacked.apply(qkv, *tables, how, factor)  # type: ignore[no-any-return]
    return _raw_packed_(qkv, *tables, how, factor)


def parts(qkv: Tensor) -> Three:
    """q, k, v `[B, H, N, D]`, views of a projection `[B, N, 3, H, D]`."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


class Turn(Function):
    """Out of place: cos, sin, xs -> ys."""

    @staticmethod
    def forward(ctx: Any, cos: Tensor, sin: Tensor, how: How, *xs: Tensor) -> Some:
        ys = tuple(_raw(x, cos, sin, how) for x in xs)
        learned = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        ctx.save_for_backward(cos, sin, *((ys if how.circle else xs) if learned else ()))
        ctx.how = how
        return ys

    @staticmethod
    def backward(ctx: Any, *gs: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *seen = ctx.saved_tensors
        if not seen:
            return None, None, None, *turn(gs, cos, sin, ctx.how.opposite(), cos.dtype)
        gradients = _of_angles if ctx.how.circle else _of_tables
        xs, along_cos, along_sin = gradients(gs, tuple(seen), cos, sin, ctx.how)
        return along_cos, along_sin, None, *xs


class TurnPacked(Function):
    """In place: qkv, cos, sin -> q, k, v in the memory of qkv, q and k turned, and q times a factor."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, how: How, factor: Tensor | None) -> Three:
        q, k, v = _raw_packed_(qkv.detach(), cos, sin, how, factor)
        learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(cos, sin, *([q, k] if learned else []))
        ctx.how, ctx.factor = how, factor
        return q, k, v

    @staticmethod
    def backward(ctx: Any, gq: Tensor, gk: Tensor, gv: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *seen = ctx.saved_tensors
        fresh = None if torch.is_grad_enabled() else gv.new_empty(gv.shape[0], gv.shape[2], 3, *gv.shape[1::2])  # [B, N, 3, H, D]
        places = None if fresh is None else parts(fresh)
        tables: tuple[Tensor | None, ...] = None, None
        if seen:
            (q, k), *tables = _of_angles((gq, gk), tuple(seen), cos, sin, ctx.how, places and places[:2])  # type: ignore[assignment]
        else:
            q, k = _back((gq, gk), cos, sin, ctx.how, places and places[:2])
        if places is None:
            q = q if ctx.factor is None else (q * ctx.factor).to(q.dtype)
            return torch.stack([t.transpose(1, 2) for t in (q, k, gv)], dim=2), *tables, None, None
        if ctx.factor is not None:
            q.mul_(ctx.factor)
        places[2].copy_(gv)
        return fresh, *tables, None, None


def _back(gs: Some, cos: Tensor, sin: Tensor, how: How, outs: Some | None) -> Some:
    """The gradients of what was turned (in `outs` if those are given), from those of what came of it."""
    if outs is not None and direct(cos.dtype, *gs, cos, sin):
        return tuple(_raw(g, cos, sin, how.opposite(), out) for g, out in zip(gs, outs))
    xs = turn(gs, cos, sin, how.opposite(), cos.dtype)
    return xs if outs is None else tuple(out.copy_(x) for x, out in zip(xs, outs))


def _of_angles(gs: Some, ys: Some, cos: Tensor, sin: Tensor, how: How, outs: Some | None = None) -> tuple[Some, Tensor, Tensor]:
    """The gradients of xs (in `outs` if those are given), cos and sin from those of ys and ys, for tables on the circle."""
    found = None if torch.is_grad_enabled() else _raw_back(gs, ys, cos, sin, how, outs)
    if found is not None:
        return found
    theta = torch.zeros_like(cos)
    for g, y in zip(gs, ys):
        a, b, u, v = _channels(g, y, cos, how)
        theta = theta + (b * u - a * v).sum_to_size(cos.shape)
    theta = -theta if how.inverse else theta
    return _back(gs, cos, sin, how, outs), -sin * theta, cos * theta


def _of_tables(gs: Some, xs: Some, cos: Tensor, sin: Tensor, how: How) -> tuple[Some, Tensor, Tensor]:
    """The gradients of xs, cos and sin from those of ys and xs, for any tables."""
    along, across = torch.zeros_like(cos), torch.zeros_like(sin)
    for g, x in zip(gs, xs):
        a, b, u, v = _channels(g, x, cos, how)
        along = along + (a * u + b * v).sum_to_size(cos.shape)
        across = across + (b * u - a * v).sum_to_size(cos.shape)
    return _back(gs, cos, sin, how, None), along, -across if how.inverse else across


def _channels(g: Tensor, y: Tensor, cos: Tensor, how: How) -> Some:
    """Both channels of each turned pair of g, then of y, `[.., N, P]`, in the dtype of the tables."""
    return tuple(part for t in (g, y) for part in halves(t[..., how.prefix :, :].to(cos.dtype), cos.shape[-1], how.layout))


def _raw(x: Tensor, cos: Tensor, sin: Tensor, how: How, out: Tensor | None = None) -> Tensor:
    """A turned copy (in `out` if that is given), by the fastest backend; nothing is recorded."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x) if out is None else out
    rows, tables = (_four(x), _four(y)), (_four(cos), _four(sin))
    backend = kernels.choose(*rows, *tables, how.layout)
    if backend is None:
        plain = _formula(x, cos, sin, how, cos.dtype)
        return plain if out is None else out.copy_(plain)
    backend.turn(*rows, *tables, *how[:3])
    return y


def _raw_back(gs: Some, ys: Some, cos: Tensor, sin: Tensor, how: How, outs: Some | None) -> tuple[Some, Tensor, Tensor] | None:
    """The gradients of xs (in `outs` if those are given), cos and sin by one kernel; None where there is none."""
    if not direct(cos.dtype, *gs, *ys, cos, sin):
        return None
    gs, ys = (tuple(t if t.stride(-1) == 1 else t.contiguous() for t in some) for some in (gs, ys))
    outs = outs or tuple(torch.empty_like(g) for g in gs)
    rows, tables = [tuple(map(_four, some)) for some in (gs, ys, outs)], (_four(cos), _four(sin))
    backends = {kernels.choose(g, out, *tables, how.layout) for g, out in zip(rows[0], rows[2])}
    backend = backends.pop()
    if backends or not hasattr(backend, "turn_back"):
        return None
    along_cos, along_sin = backend.turn_back(*rows, *tables, *how[:3])  # type: ignore[union-attr]
    return outs, along_cos.view(cos.shape), along_sin.view(sin.shape)


def _raw_packed_(qkv: Tensor, cos: Tensor, sin: Tensor, how: How, factor: Tensor | None) -> Three:
    """q and k of `[B, N, 3, H, D]` turned in place; nothing is recorded but that the memory has changed."""
    with torch.no_grad():
        three = qkv.permute(2, 0, 3, 1, 4)  # [3, B, H, N, D]
        both = three[:2]
        tables = _four(cos), _four(sin)
        backend = kernels.choose(both, both, *tables, how.layout)
        if backend is None:
            both.copy_(_formula(both, cos, sin, how, cos.dtype))
        else:
            backend.turn(both, both, *tables, *how[:3])
        q, k, v = three.unbind(0)
        if factor is not None:
            q.mul_(factor)
    if not qkv.is_inference():
        increment_version(qkv)
    return q, k, v


def _formula(x: Tensor, cos: Tensor, sin: Tensor, how: How, work: torch.dtype) -> Tensor:
    """The turn by plain operations that PyTorch differentiates, compiles and exports."""
    rest = x[..., how.prefix :, :] if how.prefix else x
    out = eager.rotate(rest.to(work), cos.to(work), (-sin if how.inverse else sin).to(work), how.layout).to(x.dtype)
    return torch.cat((x[..., : how.prefix, :], out), dim=-2) if how.prefix else out


def _work(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """In which dtype x is turned."""
    return x.dtype if dtype is None else torch.promote_types(x.dtype, dtype)


def _four(x: Tensor) -> Tensor:
    """`[.., N, D]` as `[B, H, N, D]`."""
    return x if x.ndim >= 4 else x[(None,) * (4 - x.ndim)]
