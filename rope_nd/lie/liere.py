"""LieRE: free generators, one an axis, block by block."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .._check import choose, readable
from ..positions import Extent, as_positions
from ..rope import RoPE
from ..rotation import angles
from ..scaling import Scaling
from .blocks import Blocks, check_scaling, count_blocks, skew

Start = Literal["rope", "uniform"]
PLACES = 1024  # whose matrices are made at a time


class LieRE(RoPE):
    """Lie rotational position encoding (Ostmeier 2025, ICML): a generator an axis, one exponential a token.

        R(x) = exp(sum_a x_a A_a),  q' = R(x_q) q,  k' = R(x_k) k        A_a = -A_a', block diagonal, J = D / b blocks of b x b

    `block` b: 8, or up to the head width (LieRE64 of the paper). What is learned is the entries above the diagonals, negated,
    `freqs` `[H|1, J b (b - 1) / 2, A]`, one set a head if `heads` is given. They begin (`start`) as

    - `"rope"`: the pairs of a RoPE of the family `freqs` (mixed by default), all else zero: the turns of that RoPE to rounding,
      so also of a trained one. With b = 2 it stays one: RoPE with learned frequencies.
    - `"uniform"`: U(0, 2 pi), as the authors' README has it. The coordinates that go with it could not be verified; on whole
      tokens it turns many times a token, so give `coordinates={"normalize": "unit"}` or the like.

    Scores do not depend on differences of coordinates only, unless the A_a commute (one axis, b = 2, or as `"rope"` begins):

        R(x)' R(y) = exp(<y - x, A> + (x_1 y_2 - x_2 y_1) [A_2, A_1] / 2 + ..)        in two axes

    grows with the area between origin, x and y, so with the distance from the origin; centred coordinates keep it small. Measured
    (b = 8, D = 64, a 16 x 16 grid, normal q and k): entries of a random start, N(0, s) beside the pairs, change scores by 0.02,
    0.18, 0.76 of their own standard deviation for s = 0.001, 0.01, 0.1 when both tokens move by 16 tokens along both axes.

    An exponential has no frequencies: `pi` is the one scaling rule (A_a / s_a). `strength` is the share of each A_a. Tables hold
    N D b numbers a head, b / 2 times those of RoPE and cos and sin together, and cost as much for a batch as for one sample.
    """

    def __init__(
        self,
        head_dim: int,
        axes: int,
        freqs: str | Tensor = "mixed",
        *,
        block: int = 8,
        start: Start = "rope",
        learned: bool = True,
        rotary_dim: int | None = None,
        scaling: Scaling | None = None,
        heads: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_scaling("LieRE", scaling)
        blocks = count_blocks(head_dim, rotary_dim, block)
        options |= {"rotary_dim": rotary_dim, "scaling": scaling, "heads": heads, "seed": seed, "learned": learned}
        super().__init__(head_dim, axes, freqs, **options)
        self.block, self.blocks = block, blocks
        if choose("start", start, get_args(Start)) == "uniform":
            shape = (heads or 1, self.blocks * block * (block - 1) // 2, axes)
            generator = torch.Generator(device="cpu").manual_seed(seed)
            self._initial = 2 * math.pi * torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
        else:
            self._initial = entries(self._initial, block).expand(heads or 1, -1, -1)
        empty = torch.empty(self._initial.shape, dtype=self.freqs.dtype, device=self.freqs.device)
        self.freqs = nn.Parameter(empty) if self.learned else empty
        self.reset_parameters()

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Blocks:
        """Matrices for `positions` `[N, A]` or `[B, N, A]`, one exponential for each place that is there."""
        points = as_positions(positions, self.axes)
        rows, factor = self._scaled(extent)
        rows = rows * rows.new_tensor(self.strength)
        if points.ndim == 2 or not readable(points):
            return Blocks.of(self._at(points, rows), self, factor)
        places, which = points.flatten(0, 1).unique(dim=0, return_inverse=True)  # [M, A], [B N]
        turned = self._at(places, rows)[:, which].unflatten(1, points.shape[:2]).movedim(0, 1)  # [B, H|1, N, J, b, b]
        return Blocks.of(turned, self, factor)

    def _at(self, points: Tensor, rows: Tensor) -> Tensor:
        """exp(sum_a x_a A_a), `[.., H|1, N, J, b, b]`, some places at a time: an exponential takes ten times its own memory."""
        total = angles(points, rows).unflatten(-1, (self.blocks, -1))  # [.., H|1, N, J, b (b - 1) / 2]
        kind = torch.promote_types(self.freqs.dtype, torch.float32)
        whole = torch.compiler.is_compiling()  # a graph is for any number of places
        some = [total] if whole else total.split(PLACES, dim=-3)
        return torch.cat([torch.linalg.matrix_exp(skew(part, self.block)).to(kind) for part in some], dim=-4)


def entries(freqs: Tensor, block: int) -> Tensor:
    """The entries above the diagonals of blocks that turn pair after pair by `freqs` `[H|1, P, A]`: `[H|1, J b (b - 1) / 2, A]`."""
    pairs = freqs.unflatten(1, (-1, block // 2))  # [H|1, J, b / 2, A]
    row, column = torch.triu_indices(block, block, 1, device="cpu")
    places = ((row % 2 == 0) & (column == row + 1)).nonzero().flatten()
    full = freqs.new_zeros(*pairs.shape[:2], len(row), freqs.shape[-1])
    full[:, :, places] = pairs
    return full.flatten(1, 2)
