"""Turning with gradients: which path is taken, and what is kept for backward.

The gradient of a rotation is the opposite rotation, so inputs are never kept: the tables are, which q, k and layers share. Where
the tables need a gradient too, it comes from the turned output, which attention keeps anyway. With g the gradient of y:

    d theta = g2 y1 - g1 y2   summed over what shares the angle,      d cos = -sin d theta,   d sin = cos d theta

That is the derivative along the circle cos² + sin² = 1, all there is for tables made of angles. For other tables (`circle=False`)
the input is kept, and d cos = g1 x1 + g2 x2, d sin = g2 x1 - g1 x2.

Graphs (compile, export, ONNX, torch.func, forward mode, fake tensors) and devices without a kernel take the formula as it is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from . import kernels
from .kernels import eager
from .kernels.real import halves

Three = tuple[Tensor, Tensor, Tensor]
PLAIN = (Tensor, Parameter)
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def turn(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str,
    *,
    prefix: int = 0,
    inverse: bool = False,
    circle: bool = False,
    dtype: torch.dtype | None = torch.float32,
) -> Tensor:
    """`x` `[.., N, D]` turned by tables `[.., N - prefix, P]`: same dtype, out of place, differentiable as often as one likes.

    `dtype` is the least precision of the arithmetic; `circle` says that the tables are cosines and sines of angles.
    """
    work = x.dtype if dtype is None else torch.promote_types(x.dtype, dtype)
    if x.ndim > 4 or not (_direct(work, x, cos, sin) and _fits(x, cos, sin, prefix)):
        return _formula(x, cos, sin, layout, prefix, inverse, work)
    tables = cos.to(work), sin.to(work)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, cos, sin)):
        return Turn.apply(x, *tables, layout, prefix, inverse, circle)  # type: ignore[no-any-return]
    with torch.no_grad():
        return _raw(x, *tables, layout, prefix, inverse)


def turn_packed_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str,
    *,
    prefix: int = 0,
    circle: bool = False,
    dtype: torch.dtype | None = torch.float32,
    factor: Tensor | None = None,
) -> Tensor | None:
    """q and k of `[B, N, 3, H, D]` turned where they lie, and `factor` put on q; None (and nothing done) where that cannot be."""
    work = qkv.dtype if dtype is None else torch.promote_types(qkv.dtype, dtype)
    if not (_direct(work, qkv, cos, sin) and _fits(qkv.select(2, 0).transpose(1, 2), cos, sin, prefix)):
        return None
    recording = torch.is_grad_enabled()
    learned = recording and (cos.requires_grad or sin.requires_grad)
    if (learned and not circle) or (recording and factor is not None and factor.requires_grad):
        return None
    tables = cos.to(work), sin.to(work)
    if learned or (recording and qkv.requires_grad):
        return TurnPacked.apply(qkv, *tables, layout, prefix, factor)  # type: ignore[no-any-return]
    _raw_packed_(qkv, *tables, layout, prefix, factor)
    return qkv


class Turn(Function):
    """Out of place: x, cos, sin -> y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool, circle: bool) -> Tensor:
        y = _raw(x, cos, sin, layout, prefix, inverse)
        learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(cos, sin, *([y if circle else x] if learned else []))
        ctx.how, ctx.circle = (layout, prefix, inverse), circle
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *seen = ctx.saved_tensors
        layout, prefix, inverse = ctx.how
        if not seen:
            return turn(g, cos, sin, layout, prefix=prefix, inverse=not inverse, dtype=cos.dtype), *(None,) * 6
        gradients = _of_angles if ctx.circle else _of_tables
        return *gradients(g, seen[0], cos, sin, *ctx.how), *(None,) * 4


class TurnPacked(Function):
    """In place: qkv, cos, sin -> qkv with q and k turned, and q times a factor."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, factor: Tensor | None) -> Tensor:
        _raw_packed_(qkv, cos, sin, layout, prefix, factor)
        ctx.mark_dirty(qkv)
        learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(cos, sin, *([qkv] if learned else []))
        ctx.how, ctx.factor = (layout, prefix), factor
        return qkv

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *seen = ctx.saved_tensors
        gq, gk, gv = _three(g)
        yq, yk, _ = _three(seen[0]) if seen else (None, None, None)
        found = [_back(gq, yq, cos, sin, *ctx.how), _back(gk, yk, cos, sin, *ctx.how)]
        q, k = (f[0] for f in found)
        q = q if ctx.factor is None else (q * ctx.factor).to(q.dtype)
        tables = (found[0][1] + found[1][1], found[0][2] + found[1][2]) if seen else (None, None)
        return torch.stack([t.transpose(1, 2) for t in (q, k, gv)], dim=2), *tables, None, None, None


def _back(g: Tensor, y: Tensor | None, cos: Tensor, sin: Tensor, layout: str, prefix: int) -> tuple[Tensor, ...]:
    """The gradient of what was turned into y; those of the tables too where y is given."""
    if y is None:
        return (turn(g, cos, sin, layout, prefix=prefix, inverse=True, dtype=cos.dtype),)
    return _of_angles(g, y, cos, sin, layout, prefix, False)


def _of_angles(g: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Three:
    """The gradients of x, cos and sin from that of y and y itself, for tables on the circle."""
    found = None if torch.is_grad_enabled() else _raw_back(g, y, cos, sin, layout, prefix, inverse)
    if found is None:
        x = turn(g, cos, sin, layout, prefix=prefix, inverse=not inverse, circle=True, dtype=cos.dtype)
        a, b, u, v = _channels(g, y, cos, layout, prefix)
        theta = (b * u - a * v).sum_to_size(cos.shape)
        found = x, -theta if inverse else theta
    return found[0], -sin * found[1], cos * found[1]


def _of_tables(g: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Three:
    """The gradients of x, cos and sin from that of y and x, for any tables."""
    back = turn(g, cos, sin, layout, prefix=prefix, inverse=not inverse, dtype=cos.dtype)
    a, b, u, v = _channels(g, x, cos, layout, prefix)
    across = (b * u - a * v).sum_to_size(cos.shape)
    return back, (a * u + b * v).sum_to_size(cos.shape), -across if inverse else across


def _channels(g: Tensor, y: Tensor, cos: Tensor, layout: str, prefix: int) -> tuple[Tensor, ...]:
    """Both channels of each turned pair of g, then of y, `[.., N, P]`, in the dtype of the tables."""
    return tuple(part for t in (g, y) for part in halves(t[..., prefix:, :].to(cos.dtype), cos.shape[-1], layout))


def _raw(x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Tensor:
    """A turned copy, by the fastest backend; nothing is recorded."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty_like(x)
    rows, tables = (_four(x), _four(out)), (_four(cos), _four(sin))
    backend = kernels.choose(*rows, *tables, layout)
    if backend is None:
        return _formula(x, cos, sin, layout, prefix, inverse, cos.dtype)
    backend.turn(*rows, *tables, layout, prefix, inverse)
    return out


def _raw_back(
    g: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool
) -> tuple[Tensor, Tensor] | None:
    """The gradients of x and of the angles by one kernel; None where there is none."""
    if not _direct(cos.dtype, g, y, cos, sin):
        return None
    g, y = (t if t.stride(-1) == 1 else t.contiguous() for t in (g, y))
    rows, tables = (_four(g), _four(y)), (_four(cos), _four(sin))
    backend = kernels.choose(*rows, *tables, layout)
    if backend is None or not hasattr(backend, "turn_back"):
        return None
    x, theta = backend.turn_back(*rows, *tables, layout, prefix, inverse)
    return x.view(g.shape), theta.view(cos.shape)


def _raw_packed_(qkv: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, factor: Tensor | None) -> None:
    """q and k of `[B, N, 3, H, D]` turned in place; nothing is recorded but that the memory has changed."""
    with torch.no_grad():
        both = qkv.permute(2, 0, 3, 1, 4)[:2]  # [2, B, H, N, D]
        tables = _four(cos), _four(sin)
        backend = kernels.choose(both, both, *tables, layout)
        if backend is None:
            both.copy_(_formula(both, cos, sin, layout, prefix, False, cos.dtype))
        else:
            backend.turn(both, both, *tables, layout, prefix, False)
        if factor is not None:
            both[0].mul_(factor)
    if not qkv.is_inference():
        increment_version(qkv)


def _formula(x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool, work: torch.dtype) -> Tensor:
    """The turn by plain operations that PyTorch differentiates, compiles and exports."""
    rest = x[..., prefix:, :] if prefix else x
    out = eager.rotate(rest.to(work), cos.to(work), (-sin if inverse else sin).to(work), layout).to(x.dtype)
    return torch.cat((x[..., :prefix, :], out), dim=-2) if prefix else out


def _direct(work: torch.dtype, x: Tensor, *others: Tensor) -> bool:
    """Whether kernels may be given the memory of these tensors: plain ones, nothing recording, float32 or float64 arithmetic."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return False
    if x.device.type not in kernels.BACKENDS or work != (torch.float64 if x.dtype == torch.float64 else torch.float32):
        return False
    plain = _plain_keys(x.device)
    return all(t.device == x.device and type(t) in PLAIN and torch._C._dispatch_keys(t).raw_repr() in plain for t in (x, *others))


@cache
def _plain_keys(device: torch.device) -> frozenset[int]:
    """What PyTorch marks ordinary tensors with: dense, with memory of their own, the values in it as they are read."""
    found = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.append(torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr())
    return frozenset(found)


def _fits(x: Tensor, cos: Tensor, sin: Tensor, prefix: int) -> bool:
    """Whether the tables broadcast against x `[.., N, D]` and not the other way round."""
    if sin.shape != cos.shape or cos.ndim > x.ndim or cos.shape[-2] + prefix != x.shape[-2] or x.dtype not in KINDS:
        return False
    return all(c in (1, n) for c, n in zip(cos.shape[-3::-1], x.shape[-3::-1]))


def _four(x: Tensor) -> Tensor:
    """`[.., N, D]` as `[B, H, N, D]`."""
    return x if x.ndim >= 4 else x[(None,) * (4 - x.ndim)]


def _three(qkv: Tensor) -> Three:
    """q, k, v `[B, H, N, D]` of `[B, N, 3, H, D]`."""
    q, k, v = qkv.transpose(1, 3).unbind(2)  # [B, H, 3, N, D]
    return q, k, v
