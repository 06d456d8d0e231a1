"""STRING: separable, translationally invariant encodings, of a learned basis or of circulant generators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..positions import wide
from .basis import InBasis, cayley


class CayleySTRING(InBasis):
    """Cayley-STRING (Schenck 2025, ICML): RoPE in a learned orthogonal basis.

        R(x) = RoPE(x) P        P = (I - S) (I + S)^-1,  S = -S'

    `entries` `[H|1, D (D - 1) / 2]`, those of S above the diagonal, negated, are learned, one set a head if `heads` is given. They
    start at zero, P = I, so at the RoPE of the family `freqs` (the paper's start could not be verified). P is solved for, in
    float64, not inverted. It keeps norms and products, and scores depend on differences of coordinates only.

    P acts on all tokens, prefix tokens too, which are not turned: their products with each other stay. For inference `fold` puts P
    into the projections of queries and keys, where no norm stands between; what is left is the RoPE of `freqs`. Frequencies are
    fixed unless `learned`; all scaling rules apply to them. `rotary_dim` is the share of the new channels that is turned.
    """

    entries: Tensor

    def __init__(
        self, head_dim: int, axes: int, freqs: str | Tensor = "axial", *, heads: int | None = None, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(head_dim, axes, freqs, heads=heads, seed=seed, **options)
        self._equip(entries=torch.zeros(heads or 1, head_dim * (head_dim - 1) // 2, dtype=torch.float64, device="cpu"))

    def matrix(self) -> Tensor:
        """P, `[H|1, D, D]` float64."""
        return cayley(self.entries, self.head_dim)


class CirculantSTRING(InBasis):
    """Circulant-STRING (Schenck 2025, ICML): generators that are circulant, and so all commute.

        R(x) = exp(sum_a x_a (C_a - C_a'))        C_a[i, j] = c_a[(i - j) mod D]

    `row` c `[H|1, A, D]` is learned, one a head if `heads` is given. Circulant matrices share the Fourier basis, in which this is
    RoPE with the wave vectors w_ka = 2 Im fft(c_a)_k, k = 1 .. D / 2 - 1, and two channels that never turn (the mean and the
    alternating sum). c starts from those of the family `freqs` for D / 2 - 1 pairs, the same for all heads unless the family has
    one a head (the paper's start could not be verified). w is the antisymmetric part of c up to a rotation and a factor: this is
    RoPE with learned frequencies in a fixed basis.

    The paper's cost is D log D a token through an FFT. At head widths of 32 to 128 a real product with the D x D Fourier basis is
    used instead: no complex number enters a graph, and it costs about the same (D = 64, 4 x 6 x 196 tokens, one thread, forward and
    backward: 2.6 ms there and back, a real FFT 2.2 ms). All scaling rules act on w. `layout` means nothing here; prefix tokens are
    left as they are.
    """

    row: Tensor
    back = True

    def __init__(
        self, head_dim: int, axes: int, freqs: str | Tensor = "axial", *, heads: int | None = None, seed: int = 0, **options: Any
    ) -> None:
        if options.pop("rotary_dim", None) is not None:
            raise ValueError("rotary_dim has no meaning for circulant generators, which turn all channels but two: leave it out")
        if isinstance(head_dim, int) and head_dim < 4:
            raise ValueError(f"head_dim={head_dim}: circulant generators turn head_dim - 2 channels; give 4 at the least")
        options |= {"rotary_dim": head_dim - 2, "layout": "interleaved", "learned": False}
        super().__init__(head_dim, axes, freqs, heads=heads, seed=seed, **options)
        self.learned = True  # the row is; `freqs` are where it starts
        row = self._initial.mT @ _sines(head_dim, "cpu") / -head_dim  # [H|1, A, D]
        self._equip(row=row.expand(heads or 1, -1, -1))

    def vectors(self) -> Tensor:
        """w_ka = -2 sum_m c_am sin(2 pi k m / D), `[H|1, D / 2 - 1, A]`."""
        sines = _sines(self.head_dim, self.row.device)  # [D / 2 - 1, D]
        turning = -2 * (self.row.to(sines.dtype)[..., None, :] * sines).sum(-1)  # [H|1, A, D / 2 - 1]
        return turning.mT.to(self.row.dtype)

    def matrix(self) -> Tensor:
        """The real Fourier basis `[1, D, D]`: for each k its sines and cosines, then the mean and the alternating sum."""
        width = self.head_dim
        sines, cosines = (_waves(width, self.row.device, wave) * math.sqrt(2 / width) for wave in (torch.sin, torch.cos))
        flat = torch.full((1, width), width**-0.5, dtype=sines.dtype, device=sines.device)
        pairs = torch.stack((sines, cosines), dim=1).flatten(0, 1)  # [D - 2, D]
        signs = 1 - 2 * (torch.arange(width, device=sines.device) % 2)
        return torch.cat((pairs, flat, flat * signs))[None]


def _waves(width: int, device: torch.device | str, wave: Any) -> Tensor:
    """sin or cos of 2 pi k m / D, k = 1 .. D / 2 - 1, m = 0 .. D - 1: `[D / 2 - 1, D]`."""
    k, m = torch.arange(1, width // 2, device=device), torch.arange(width, device=device)
    return wave((k[:, None] * m % width).to(wide(device)) * (2 * math.pi / width))


def _sines(width: int, device: torch.device | str) -> Tensor:
    return _waves(width, device, torch.sin)
