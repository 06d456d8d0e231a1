"""PoPE: polar coordinates, the content's magnitudes and the position's phases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ._check import choose
from .positions import Extent
from .rotation import Rotation
from .variants import Equipped, fitted, per_head, whole

Start = Literal["zeros", "uniform"]


class PoPE(Equipped):
    """Polar coordinate position embedding (Gopalakrishnan 2025): content sets magnitudes alone, position phases alone.

        score = sum_c mu(q_c) mu(k_c) cos(<w_c, x_k - x_q> + delta_hc)        mu = softplus, c = 0 .. D - 1

    RoPE's score has the content's own angle inside the cosine, so what and where cannot be asked for apart; here they can. Each of
    the D channels has a frequency (axial: theta^(-i / F_a) for the F_a channels of axis a), and becomes (mu cos, mu sin): queries
    and keys grow to 2D, values do not. `delta` `[H|1, D]` is learned, one row a head if `heads` is given, from zeros or
    `delta="uniform"` over its range [-2 pi, 0]. It is clamped to that range where it is used; the gradient passes the clamp, or
    what starts at an end would stay there. Prefix tokens have phase 0, as queries and as keys: (mu, 0).

    Scores depend on differences of coordinates only; norms are not those of q and k, and `strength=0` is not the plain score
    (softplus stays). All scaling rules apply, with D pairs. `layout` means nothing. For content and place that must be told apart,
    and for lengths beyond the trained; a model trained otherwise must be trained anew.
    """

    delta: Tensor

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str | Tensor = "axial",
        *,
        delta: Start = "zeros",
        heads: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if options.get("rotary_dim") is not None:
            raise ValueError(f"rotary_dim={options['rotary_dim']!r}: every channel of PoPE has a phase; leave it out")
        super().__init__(2 * whole("head_dim", head_dim, axes), axes, freqs, heads=heads, seed=seed, **options)
        self.head_dim = head_dim
        share = torch.zeros(heads or 1, head_dim, dtype=torch.float64, device="cpu")  # [H|1, D]
        if choose("delta", delta, get_args(Start)) == "uniform":
            share.uniform_(generator=torch.Generator(device="cpu").manual_seed(seed))
        self._equip(delta=-2 * math.pi * share)

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Polar:
        t = super().forward(positions, extent)
        delta = self.delta.detach().clamp(-2 * math.pi, 0) + (self.delta - self.delta.detach())  # the gradient passes
        return Polar(t.cos, t.sin, t.layout, t.prefix_tokens, t.temperature, t.dtype, delta=delta[:, None])


@dataclass(frozen=True, kw_only=True)
class Polar(Rotation):
    """Phases of one set of tokens: a `Rotation` with a table entry a channel, `cos`, `sin` `[.., N, D]`; `delta`: `[H|1, 1, D]`."""

    delta: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        raise ValueError("PoPE treats queries and keys differently: call rotation.qk(q, k)")

    def qk(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, H, N, D]` each -> `[B, H, N, 2D]`, the temperature on all queries; the dtypes stay."""
        width = self.delta.shape[-1]
        cos, sin = fitted(self, k, width)
        c, s = per_head(self.delta.cos(), k), per_head(self.delta.sin(), k)
        query = self._features(q, *fitted(self, q, width))
        key = self._features(k, cos * c - sin * s, sin * c + cos * s)  # phases with the bias added
        return (query if self.temperature is None else query * self.temperature).to(q.dtype), key.to(k.dtype)

    def _features(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        work = x.dtype if self.dtype is None else torch.promote_types(x.dtype, self.dtype)
        rows = (0, 0, self.prefix_tokens, 0)
        c, s = nn.functional.pad(cos, rows, value=1.0).to(work), nn.functional.pad(sin, rows).to(work)
        size = nn.functional.softplus(x.to(work))  # [B, H, N, D]
        return torch.cat((size * c, size * s), dim=-1)
