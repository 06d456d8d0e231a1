"""Turning with gradients: which path is taken, and what is kept for backward.

The gradient of a rotation is the opposite rotation, so inputs are never kept: the tables are, which q, k and layers share. Where
the tables need a gradient too, it comes from the turned output, which attention keeps anyway. With g the gradient of y:

    d theta = g2 y1 - g1 y2   summed over what shares the angle,      d cos = -sin d theta,   d sin = cos d theta

That is the derivative along the circle cos² + sin² = 1, all there is for tables made of angles. For other tables (`circle=False`)
the input is kept, and d cos = g1 x1 + g2 x2, d sin = g2 x1 - g1 x2.

Graphs (compile, export, ONNX, torch.func, forward mode, fake tensors) and devices without a kernel take the formula as it is.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import increment_version

from . import kernels
from .kernels import eager
from .kernels.plain import How, Some, Three, direct, fits, four, parts
from .kernels.real import halves

__all__ = ["How", "parts", "turn", "turn_packed_"]


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
    source = qkv if qkv._base is None else qkv._base  # a leaf that learns keeps its values
    if recording and ((learned and not how.circle) or _learns(factor) or (_learns(source) and source.is_leaf)):
        return None
    tables = cos.to(work), sin.to(work)
    if learned or (recording and qkv.requires_grad):
        return TurnPacked.apply(qkv, *tables, how, factor)  # type: ignore[no-any-return]
    return _raw_packed_(qkv, *tables, how, factor)


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
        if torch.is_grad_enabled():
            return TurnPacked._again(ctx, (gq, gk, gv), cos, sin, seen)
        fresh = gv.new_empty(gv.shape[0], gv.shape[2], 3, *gv.shape[1::2])  # [B, N, 3, H, D]
        q, *_ = places = parts(fresh)
        tables: Some | tuple[None, None] = (None, None)
        if seen:
            _, *tables = _of_angles((gq, gk, gv), tuple(seen), cos, sin, ctx.how, places)  # type: ignore[assignment]
        else:
            _back((gq, gk, gv), cos, sin, ctx.how, places, turned=2)
        if ctx.factor is not None:
            q.mul_(ctx.factor)
        return fresh, *tables, None, None

    @staticmethod
    def _again(ctx: Any, gs: Three, cos: Tensor, sin: Tensor, seen: list[Tensor]) -> tuple[Tensor | None, ...]:
        """The same by operations whose own gradients are known."""
        tables: Some | tuple[None, None] = (None, None)
        if seen:
            (q, k), *tables = _of_angles(gs[:2], tuple(seen), cos, sin, ctx.how)  # type: ignore[assignment]
        else:
            q, k = turn(gs[:2], cos, sin, ctx.how.opposite(), cos.dtype)
        q = q if ctx.factor is None else (q * ctx.factor).to(q.dtype)
        return torch.stack([t.transpose(1, 2) for t in (q, k, gs[2])], dim=2), *tables, None, None


def _back(gs: Some, cos: Tensor, sin: Tensor, how: How, outs: Some, turned: int) -> None:
    """The gradients of what was turned, and copies of those after the first `turned`, in `outs`."""
    backends = _backends(gs, outs, cos, sin, how) if direct(cos.dtype, *gs, cos, sin) else {None}
    backend = backends.pop()
    if not backends and hasattr(backend, "turn_some"):
        backend.turn_some(gs, outs, turned, four(cos), four(sin), *how.opposite()[:3])  # type: ignore[union-attr]
        return
    xs = turn(gs[:turned], cos, sin, how.opposite(), cos.dtype)
    for x, out in zip((*xs, *gs[turned:]), outs):
        out.copy_(x)


def _backends(xs: Some, outs: Some, cos: Tensor, sin: Tensor, how: How) -> set[ModuleType | None]:
    """Which backends take them."""
    return {kernels.choose(four(x), four(out), four(cos), four(sin), how.layout) for x, out in zip(xs, outs)}


def _of_angles(gs: Some, ys: Some, cos: Tensor, sin: Tensor, how: How, outs: Some | None = None) -> tuple[Some, Tensor, Tensor]:
    """The gradients of xs (in `outs` if those are given), cos and sin from those of ys and ys, for tables on the circle.

    Gradients beyond the ys are copied into `outs`.
    """
    found = None if torch.is_grad_enabled() else _raw_back(gs, ys, cos, sin, how, outs)
    if found is not None:
        return found
    theta = torch.zeros_like(cos)
    for g, y in zip(gs, ys):
        a, b, u, v = _channels(g, y, cos, how)
        theta = theta + (b * u - a * v).sum_to_size(cos.shape)
    theta = -theta if how.inverse else theta
    if outs is None:
        return turn(gs, cos, sin, how.opposite(), cos.dtype), -sin * theta, cos * theta
    _back(gs, cos, sin, how, outs, len(ys))
    return outs, -sin * theta, cos * theta


def _of_tables(gs: Some, xs: Some, cos: Tensor, sin: Tensor, how: How) -> tuple[Some, Tensor, Tensor]:
    """The gradients of xs, cos and sin from those of ys and xs, for any tables."""
    along, across = torch.zeros_like(cos), torch.zeros_like(sin)
    for g, x in zip(gs, xs):
        a, b, u, v = _channels(g, x, cos, how)
        along = along + (a * u + b * v).sum_to_size(cos.shape)
        across = across + (b * u - a * v).sum_to_size(cos.shape)
    return turn(gs, cos, sin, how.opposite(), cos.dtype), along, -across if how.inverse else across


def _channels(g: Tensor, y: Tensor, cos: Tensor, how: How) -> Some:
    """Both channels of each turned pair of g, then of y, `[.., N, P]`, in the dtype of the tables."""
    return tuple(part for t in (g, y) for part in halves(t[..., how.prefix :, :].to(cos.dtype), cos.shape[-1], how.layout))


def _raw(x: Tensor, cos: Tensor, sin: Tensor, how: How) -> Tensor:
    """A turned copy, by the fastest backend; nothing is recorded."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x)
    rows, tables = (four(x), four(y)), (four(cos), four(sin))
    backend = kernels.choose(*rows, *tables, how.layout)
    if backend is None:
        return _formula(x, cos, sin, how, cos.dtype)
    backend.turn(*rows, *tables, *how[:3])
    return y


def _raw_back(gs: Some, ys: Some, cos: Tensor, sin: Tensor, how: How, outs: Some | None) -> tuple[Some, Tensor, Tensor] | None:
    """The gradients of xs (in `outs` if those are given), cos and sin by one kernel; None where there is none."""
    if not direct(cos.dtype, *gs, *ys, cos, sin):
        return None
    gs, ys = (tuple(t if t.stride(-1) == 1 else t.contiguous() for t in some) for some in (gs, ys))
    outs = outs or tuple(torch.empty_like(g) for g in gs)
    rows, tables = [tuple(map(four, some)) for some in (gs, ys, outs)], (four(cos), four(sin))
    backends = _backends(gs, outs, cos, sin, how)
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
        tables = four(cos), four(sin)
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


def _learns(x: Tensor | None) -> bool:
    return x is not None and x.requires_grad


def _work(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """In which dtype x is turned."""
    return x.dtype if dtype is None else torch.promote_types(x.dtype, dtype)
