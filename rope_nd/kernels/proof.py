"""Every backend against float64, on a small case, before it may be chosen."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import torch
from torch import Tensor

HEADS, TOKENS, PAIRS, PREFIX = 2, 5, 19, 2
FAR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 1.3e-3, torch.bfloat16: 9e-3}  # rounded once: up to 2^-10, 2^-7


def is_right(backend: ModuleType, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `backend` gives what float64 gives, for both layouts and directions, in place and not, shared tables and not."""
    try:
        with torch.no_grad():
            cases = product(("interleaved", "half"), (False, True), (False, True), ((1, 1), (1, HEADS), (2, 1), (2, HEADS)))
            return all(_agrees(backend, device, dtype, *case) for case in cases)
    except Exception:  # whatever a kernel can fail with: it is not chosen
        return False


def _agrees(
    backend: ModuleType, device: torch.device, dtype: torch.dtype, layout: str, inverse: bool, in_place: bool, lead: tuple[int, int]
) -> bool:
    """One case; what the backend does not take is not held against it."""
    x, cos, sin = _case(device, dtype, lead)
    out = x if in_place else torch.full_like(x, float("nan"))
    if not backend.supports(x, out, cos, sin, layout):
        return True
    exact = exactly(x.double(), cos.double(), sin.double(), layout, PREFIX, inverse)
    untouched = x.clone()
    backend.turn(x, out, cos, sin, layout, PREFIX, inverse)
    kept = in_place or torch.equal(x, untouched)
    return kept and _near(out, exact, dtype) and _back_agrees(backend, untouched, out, cos, sin, layout, inverse)


def _back_agrees(backend: ModuleType, g: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: str, inverse: bool) -> bool:
    """The gradient of inputs and angles, of backends that have one."""
    if not hasattr(backend, "turn_back"):
        return True
    gs, ys = (g, y), (y, g)  # two at once, the second the other way round
    outs = torch.full_like(g, float("nan")), torch.full_like(g, float("nan"))
    found = backend.turn_back(gs, ys, outs, cos, sin, layout, PREFIX, inverse)
    wide, theta = (cos.double(), sin.double()), torch.zeros_like(cos).double()
    for given, turned in zip(gs, ys):
        theta += _slope(given.double(), turned.double(), cos, layout, inverse)
    backs = (exactly(t.double(), *wide, layout, PREFIX, not inverse) for t in gs)
    right = all(_near(out, back, dtype=g.dtype) for out, back in zip(outs, backs))
    return right and all(bool((f.double() - t).abs().max() < 1e-4) for f, t in zip(found, (-wide[1] * theta, wide[0] * theta)))


def _slope(g: Tensor, y: Tensor, cos: Tensor, layout: str, inverse: bool) -> Tensor:
    """The gradient of the angles, in the shape of `cos`."""
    quarter = exactly(y, torch.zeros_like(cos).double(), torch.ones_like(cos).double(), layout, PREFIX, inverse)
    halves = (quarter * g)[..., PREFIX:, : 2 * PAIRS].unflatten(-1, (-1, 2) if layout == "interleaved" else (2, -1))
    return halves.sum(-1 if layout == "interleaved" else -2).sum_to_size(cos.shape)


def _near(found: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    return bool((found.double() - exact).abs().max() < FAR[dtype])  # false for NaN


def _case(device: torch.device, dtype: torch.dtype, lead: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as a packed projection has them, with one channel pair and more that is not turned."""
    width = 2 * PAIRS + 6
    count = 2 * TOKENS * 3 * HEADS * width
    values = (torch.arange(count, device=device, dtype=torch.float64) * 0.7).sin() * 2
    x = values.to(dtype).view(2, TOKENS, 3, HEADS, width).permute(2, 0, 3, 1, 4)[1]  # [B, H, N, D]
    places = torch.arange(lead[0] * lead[1] * (TOKENS - PREFIX) * PAIRS, device=device, dtype=torch.float64)
    angles = places.view(*lead, TOKENS - PREFIX, PAIRS) * 0.37
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    return x, angles.cos().to(kind), angles.sin().to(kind)


def exactly(x: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> Tensor:
    """The turn by its definition, in the dtype given."""
    y, pairs = x.clone(), cos.shape[-1]
    s = -sin if inverse else sin
    a, b = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if layout == "interleaved" else (slice(0, pairs), slice(pairs, 2 * pairs))
    )
    first, second = x[..., prefix:, a], x[..., prefix:, b]
    y[..., prefix:, a] = first * cos - second * s
    y[..., prefix:, b] = first * s + second * cos
    return y
