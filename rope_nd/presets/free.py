"""Published encodings for any number of axes: `axes=` (2 by default)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..freqs import magnitudes
from ..positions import Extent, sizes
from ..rope import RoPE
from ._preset import preset


def log_spaced(n: int, *, low: float, high: float, zeros: float = 0.0) -> Tensor:
    """`n` frequencies `[n]`: the share `zeros` of them 0, the others from `low` to `high`, both met, evenly in the logarithm."""
    if not 0 < low <= high or not 0 <= zeros <= 1:
        raise ValueError(f"frequencies from {low} to {high}, a share {zeros} of them zero: give 0 < low <= high, a share in 0 .. 1")
    still = round(zeros * n)
    part = torch.linspace(0, 1, n - still, dtype=torch.float64, device="cpu")
    return torch.cat((part.new_zeros(still), low * (high / low) ** part))


@preset(axes=None, paper="On N-dimensional rotary positional embeddings (Xiong 2025)", used_by="vit-pytorch ViTND")
def golden_gate(
    head_dim: int, *, axes: int, min_freq: float = 0.2, max_freq: float = 20.0, p_zero_freqs: float = 0.0, **options: Any
) -> RoPE:
    """Fixed directions spread evenly over heads and pairs, frequencies from `min_freq` to `max_freq`, slowest first, half layout.

    w_hp = m_p u_k, k = h P + p + 1, m log-spaced, the first round(`p_zero_freqs` P) zero; u_k as in `freqs.directions`.
    Coordinates are centred, in (-1, 1) on each axis; vit-pytorch has token indices and 1 .. 10000
    (`coordinates={}, min_freq=1, max_freq=10000`), and with two axes the directions of the rule for more: ours go by the golden
    angle, as the author's do. To load such a model give its buffer to RoPE: `RoPE(head_dim, 2, freqs, layout="half")`.
    """
    schedule = partial(log_spaced, low=min_freq, high=max_freq, zeros=p_zero_freqs)
    known = {"layout": "half", "coordinates": {"normalize": "centred"}}
    return RoPE(head_dim, axes, "golden", schedule=schedule, **{**known, **options})


@preset(axes=None, paper="nD-RoPE", used_by="nD-RoPE DeiT, TimeSformer")
def simplex(head_dim: int, *, axes: int, **options: Any) -> RoPE:
    """A + 1 directions of a regular simplex at each of S = floor(P / (A + 1)) scales, each scale turned at random: isotropic.

    w = r_s R_s u_i, sum_i u_i = 0, <u_i, u_j> = -1 / A, r_s = theta^(-s / S), theta 100; interleaved, token indices. Written
    from the paper's equations, no code of it being public. Pairs beyond S (A + 1) are not turned (two of 32 with two axes).
    """
    return RoPE(head_dim, axes, "simplex", **options)


@preset(axes=None, paper="Spiral RoPE", used_by="Spiral RoPE ViT")
def spiral(head_dim: int, *, axes: int, ways: int | None = None, **options: Any) -> RoPE:
    """Pairs in K groups, each with its own direction and the whole spectrum: w = theta^(-i / F) u_k, F = P / K.

    With two axes u_k has the angle pi k / K from the first, so that K = 2 is axial; with others `freqs.directions` gives them.
    K = `ways`, twice the axes by default; theta 100; interleaved, token indices.
    """
    return RoPE(head_dim, axes, "spiral", ways=ways, **options)


@preset(axes=None, paper="RoSE, rotary-spatial-embeddings (Rhoades 2025)", used_by="RoSE multi-head attention, microscopy")
def rose(
    head_dim: int,
    *,
    axes: int,
    theta: float = 10000.0,
    spacing: float | tuple[float, ...] = 1.0,
    jitter: float = 0.02,
    heads: int | None = None,
    learned: bool = True,
    seed: int = 0,
    **options: Any,
) -> RoPE:
    """Learned vectors over physical coordinates: x_a = `spacing`_a · index, in units of one's own (nanometres, millimetres).

    w_hpa = b^(-(h P + p) / (H P)) exp(`jitter` · N(0, 1)), b = theta^(1 / sqrt(A)): one spectrum over all heads, and all vectors
    begin near the diagonal (1, .., 1), so that tokens on a line across it (i + 1, j - 1) are told apart by the jitter alone until
    training turns the vectors. Interleaved. The origin can leave whole heads unturned (`rotary_ratio`) and rescale the spacing;
    both are left out.
    """
    count, pairs = heads or 1, head_dim // 2
    size = magnitudes(count * pairs, theta=theta ** (1 / math.sqrt(axes))).view(count, pairs, 1)  # [H, P, 1]
    generator = torch.Generator(device="cpu").manual_seed(seed)
    spread = torch.randn(count, pairs, axes, generator=generator, dtype=torch.float64, device="cpu")  # [H, P, A]
    freqs = size * (jitter * spread).exp()
    return RoPE(head_dim, axes, freqs, heads=heads, learned=learned, **{"coordinates": {"spacing": spacing}, **options})


class EndToEnd(RoPE):
    """Coordinates from -1 to 1, both met: x = (2 i + 1 - N) / (N - 1), where the centred ones stop half a token before each end.

    An axis of one token has 0.
    """

    def _stretch(self, extent: Extent) -> Tensor:
        count = sizes(extent, self.freqs.device)  # [A]
        return count / (count - 1).clamp(min=1)

    def _steps(self, extent: Extent) -> Tensor:
        return super()._steps(extent) * self._stretch(extent)

    def _pitch(self, extent: Extent) -> Tensor:
        return super()._pitch(extent) * self._stretch(extent)


@preset(axes=None, paper="rotary-embedding-torch (Wang 2021)", used_by="SeedVR2")
def axial_pixel(head_dim: int, *, axes: int, max_freq: float = 256.0, **options: Any) -> RoPE:
    """Axial, frequencies pi · linspace(1, max_freq / 2, F), slowest first, over coordinates from -1 to 1 that meet both ends.

    Interleaved, F = floor(P / A) pairs an axis, the others not turned. The coordinates of a grid do not depend on its size but
    for the step 2 / (N - 1). An axis of one token is at 0 here, at -1 in the origin: no score within it can tell.
    """
    known = {"schedule": "pixel", "max_freq": max_freq, "leftover": "unrotated", **options}
    if "coordinates" in options:
        return RoPE(head_dim, axes, **known)
    return EndToEnd(head_dim, axes, coordinates={"normalize": "centred"}, **known)
