"""PaPE: parabolas of the distance, folded into queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .positions import Extent, as_positions
from .rotation import Rotation, angles
from .scaling import Scaling, interpolates
from .variants import Equipped, fitted, normal, per_head, whole


class PaPE(Equipped):
    """Parabolic position encoding (Øhrstrøm 2026): the score of a pair of tokens falls with the square of their distance.

        score_ij += sum_p -a_p (u_ip - u_jp)^2 + b_p (u_ip - u_jp)     u = W x,  a = softplus(q_i W_a + c_a),  b = q_i W_b + c_b

    W is learned, M rows a head: the wave vectors `freqs` `[H|1, M, A]` of this RoPE. By default, M = 2A `parabolas` whose rows of
    length 1 / `reach` are a frame turned at random, so that decay starts alike in every direction: at a distance of `reach` (units
    of position) a score is ln 2 · M / A lower. Curvature a and slope b come from the head's query by a learned linear map
    `[H|1, D, 2M]` of each head's own, or one for all if `heads` is not given; it starts near a = ln 2, b = 0. Where a query should
    look, how far and which way, depends on its content; the farther, the less, at any extent. For images and points, and for
    inputs beyond the trained size.

    Multiplied out, a parabola is a product of what only i knows and what only j knows, so it goes into more channels:

        q'_i = [q_i, sum_p (b u_i - a u_i^2), a, 2 a u_i - b] · [1, 1/s, 1/s, 1/s]       k'_j = [k_j, 1, -u_j^2, u_j]

    2M + 1 more, zeros up to a multiple of 8, in place of an [H, N, N] bias. s is the factor that attention puts on scores,
    `score_scale`, D^-0.5 if not given. The products are large and cancel, so in half precision (or what autocast will lower) each
    of these channels is three: high · high + high · low + low · high parts, exact to 2^-16 of the products in bfloat16. Values stay
    as wide as they were: fused attention must allow that. Pairs with a prefix token have no parabola; where a class token alone is
    read, those of the last layer do nothing.

    Scores depend on differences of coordinates only. A parabola has no turns, so `pi` is the one scaling rule with a meaning
    (u / s_a: the decay widens with the grid). `strength` is the share of u; 0 leaves the scores of the content. `layout` and
    `rotate_dtype` mean nothing.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str | Tensor = "mixed",
        *,
        parabolas: int | None = None,
        reach: float = 8.0,
        score_scale: float | None = None,
        scaling: Scaling | None = None,
        learned: bool = True,
        heads: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        told = sorted({"theta", "schedule", "rotary_dim"} & {name for name, value in options.items() if value is not None})
        if told:
            raise ValueError(f"{told[0]}={options[told[0]]!r}: a parabola has no frequency; give parabolas and reach instead")
        if not interpolates(scaling):
            raise ValueError(f"scaling={scaling!r} goes by turns, and a parabola has none: choose 'pi', or leave scaling out")
        if not 0 < reach < math.inf or not 0 < (score_scale or 1) < math.inf:
            raise ValueError(f"reach={reach!r} and score_scale={score_scale!r} must be positive and finite")
        count = 2 * axes if parabolas is None else whole("parabolas", parabolas, 1)
        if not isinstance(freqs, Tensor):
            options["schedule"] = lambda n: torch.full((n,), 1 / reach, dtype=torch.float64, device="cpu")
        super().__init__(2 * count, axes, freqs, learned=learned, scaling=scaling, heads=heads, seed=seed, **options)
        self.head_dim = whole("head_dim", head_dim, 1)
        self.score_scale = head_dim**-0.5 if score_scale is None else score_scale
        weight = 0.02 * normal(seed, heads or 1, head_dim, 2 * count)
        self._equip(weight=weight, bias=torch.zeros(heads or 1, 2 * count, device="cpu"))

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Parabolas:
        points = as_positions(positions, self.axes)
        rows, factor = self._scaled(extent)
        u = angles(points, rows * rows.new_tensor(self.strength))  # [H|1, N, M] or [B, H|1, N, M]
        u = u[0] if u.ndim == 3 and u.shape[0] == 1 else u
        kind = self.vectors().dtype if self.learned else torch.float32
        return Parabolas(
            -u.square().to(kind),
            u.to(kind),
            prefix_tokens=self.prefix_tokens,
            temperature=factor,
            weight=self.weight,
            bias=self.bias[:, None],
            score_scale=self.score_scale,
        )


@dataclass(frozen=True, kw_only=True)
class Parabolas(Rotation):
    """Parabolas of one set of tokens: a `Rotation` by small angles, `sin` holding u and `cos` -u^2, both `[.., N, M]`.

    `weight` `[H|1, D, 2M]` and `bias` `[H|1, 1, 2M]` make curvatures and slopes of queries.
    """

    weight: Tensor
    bias: Tensor
    score_scale: float

    def __call__(self, x: Tensor) -> Tensor:
        raise ValueError("PaPE treats queries and keys differently: call rotation.qk(q, k)")

    def qk(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, H, N, D]` each -> `[B, H, N, D']`, D' a multiple of 8, the temperature on all queries; the dtypes stay."""
        width = self.weight.shape[-2]
        falls, u = fitted(self, q, width)
        query = query_channels(*self._bends(q[..., self.prefix_tokens :, :]), falls, u) / self.score_scale  # [B, H, N, 2M + 1]
        key = key_channels(*fitted(self, k, width))  # [(H,) N, 2M + 1]
        if self.temperature is not None:
            q, query = (q * self.temperature).to(q.dtype), query * self.temperature
        query, key = parts(query, key, arriving(q))
        return _beside(q, query, self.prefix_tokens), _beside(k, key, self.prefix_tokens)

    def _bends(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Curvatures and slopes `[B, H, N, M]` that queries ask for, float32 at the least."""
        work = torch.promote_types(q.dtype, torch.float32)
        found = (q.to(work) @ per_head(self.weight, q).to(work)).to(work) + per_head(self.bias, q)
        curve, slope = found.chunk(2, dim=-1)
        return nn.functional.softplus(curve), slope


def query_channels(curve: Tensor, slope: Tensor, falls: Tensor, u: Tensor) -> Tensor:
    """What a query knows of a = `curve`, b = `slope`, its -u^2 and u: [sum (b u - a u^2), a, 2 a u - b], `[.., N, 2M + 1]`."""
    own = (curve * falls + slope * u).sum(-1, keepdim=True)
    return torch.cat((own, curve, 2 * curve * u - slope), dim=-1)


def key_channels(falls: Tensor, u: Tensor) -> Tensor:
    """What a key knows: [1, -u^2, u], `[.., N, 2M + 1]`."""
    return torch.cat((torch.ones_like(u[..., :1]), falls, u), dim=-1)


def arriving(x: Tensor) -> torch.dtype:
    """The dtype that attention will have of `x`: its own, or what autocast lowers it to."""
    kind = x.device.type
    lowers = x.dtype == torch.float32 and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(x.device.type) if lowers else x.dtype


def parts(query: Tensor, key: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Channels whose products survive rounding to `dtype`: q k = q_high k_high + q_high k_low + q_low k_high, up to low · low."""
    if torch.finfo(dtype).bits >= 32:
        return query, key
    (q, q_low), (k, k_low) = ((x.to(dtype), (x - x.to(dtype).to(x.dtype)).to(dtype)) for x in (query, key))
    return torch.cat((q, q, q_low), dim=-1), torch.cat((k, k_low, k), dim=-1)


def _beside(x: Tensor, channels: Tensor, prefix: int) -> Tensor:
    """`x` `[.., N, D]` and more channels, zero for the first `prefix` tokens, in the dtype of `x`, up to a multiple of 8."""
    rows = nn.functional.pad(channels, (0, -(x.shape[-1] + channels.shape[-1]) % 8, prefix, 0)).to(x.dtype)
    return torch.cat((x, rows.expand(*x.shape[:-1], rows.shape[-1])), dim=-1)
