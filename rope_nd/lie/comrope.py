"""ComRoPE: generators that commute, so that scores are relative exactly."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .._check import choose, readable
from ..positions import Extent, as_positions, wide
from ..rotation import angles
from ..scaling import Scaling
from ..variants import Equipped, normal, whole
from .blocks import Blocks, check_scaling, count_blocks, precise

Kind = Literal["ap", "ld"]


class ComRoPE(Equipped):
    """Rotary position embedding by commuting angle matrices (Yu 2025, CVPR): each block turns in one way, however fast.

        R(x) = exp(sum_a x_a A_a)        A_a = diag(B_a1 .. B_aJ), J = D / b blocks, B_aj = theta_ja (P_j - P_j')

    - `kind="ap"`, axial partition: theta_ja = 1 for a = j mod A, else 0: a block is for one axis, as a pair of axial RoPE is.
    - `kind="ld"`, linearly dependent: theta_ja is learned too: a block is for one direction, as a pair of RoPE-Mixed is.

    `block` b: 8, or for ap the next smaller size that gives each axis a block, unless it is given.
    The B_aj of a block are multiples of one matrix and commute: scores depend on differences of coordinates only, at any values.
    `base` P `[H|1, J, b, b]` and theta, `freqs` `[H|1, J, A]`, are learned, one set a head if `heads` is given. They start from
    P ~ N(0, sigma), theta ~ N(0, 1) (ap: fixed). The paper's sigma and coordinates could not be verified; `sigma=0.1` is ours: at
    b = 8 the fastest turn of a block is then about 0.6 radians a token. `speeds` `[H|1, J, A]` gives theta outright.

    In two axes RoPE with frequencies w_p is P with w_p below the diagonal of each pair. Seen in a basis of P - P' of its own, a
    block is b / 2 pairs whose frequencies are parallel; that they are not free of each other is what tells LD from a RoPE in a
    learned basis. No frequencies are at hand, so `pi` is the one scaling rule (A_a / s_a). `strength` is the share of each A_a.

    exp is taken once a coordinate of each axis, not once a token, where tokens share coordinates (grids, outside graphs).
    """

    base: Tensor

    def __init__(
        self,
        head_dim: int,
        axes: int,
        *,
        kind: Kind,
        block: int | None = None,
        sigma: float = 0.1,
        speeds: Tensor | None = None,
        rotary_dim: int | None = None,
        scaling: Scaling | None = None,
        heads: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_scaling("ComRoPE", scaling)
        told = sorted({"theta", "schedule", "freqs"} & {name for name, value in options.items() if value is not None})
        if told:
            raise ValueError(f"{told[0]}={options[told[0]]!r}: ComRoPE begins with no frequencies; give sigma or speeds instead")
        learned = choose("kind", kind, get_args(Kind)) == "ld"
        width = whole("head_dim", head_dim, 2) if rotary_dim is None else rotary_dim
        block = _size(width, 1 if learned else axes) if block is None else block
        blocks = count_blocks(head_dim, rotary_dim, block)
        if not learned and blocks < axes:
            raise ValueError(
                f"head_dim={head_dim} has {blocks} blocks of {block} for axes={axes}: each axis needs one; the nearest head_dim "
                f"that works is {block * axes}, or give a smaller block"
            )
        if not sigma > 0:
            raise ValueError(f"sigma={sigma!r}: the spread of the first matrices must be positive")
        table = _thetas(learned, speeds, heads or 1, blocks, axes, seed)
        super().__init__(2 * blocks, axes, table, learned=learned, scaling=scaling, heads=heads, seed=seed, **options)
        self.head_dim, self.block, self.blocks = head_dim, block, blocks
        self._equip(base=sigma * normal(seed, heads or 1, blocks, block, block))

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Blocks:
        """Matrices for `positions` `[N, A]` or `[B, N, A]`."""
        points = as_positions(positions, self.axes)
        thetas, factor = self._scaled(extent)
        thetas = thetas * thetas.new_tensor(self.strength)
        turned = (self._by_axis if readable(points) else self._at)(points, thetas)
        return Blocks.of(turned.to(torch.promote_types(self.base.dtype, torch.float32)), self, factor)

    def _at(self, points: Tensor, thetas: Tensor) -> Tensor:
        """exp(<theta_j, x> (P_j - P_j')) token by token, `[.., H|1, N, J, b, b]`."""
        base = self.base.to(wide(points.device))
        share = angles(points, thetas)[..., None, None]  # [.., H|1, N, J, 1, 1]
        return torch.linalg.matrix_exp(share * (base - base.mT)[:, None])

    def _by_axis(self, points: Tensor, thetas: Tensor) -> Tensor:
        """The same as a product of one exponential an axis, once for each coordinate; token by token if that is no less work."""
        found = [points[..., a].unique(return_inverse=True) for a in range(self.axes)]  # [M_a], [.., N]
        if 2 * sum(len(values) for values, _ in found) > points[..., 0].numel():
            return self._at(points, thetas)
        total: Tensor | None = None
        for axis, (values, which) in enumerate(found):
            factor = self._at(values[:, None], thetas[..., axis : axis + 1])[:, which]  # [H|1, (B,) N, J, b, b]
            with precise(points.device):
                total = factor if total is None else total @ factor
        return total if points.ndim == 2 else total.movedim(0, 1)  # type: ignore[union-attr,return-value]


def _size(width: int, axes: int) -> int:
    """8 channels a block, or less where an axis would be left without one."""
    smaller = (size for size in (6, 4, 2) if width % size == 0 and width // size >= axes)
    return 8 if width % 8 or width // 8 >= axes else next(smaller, 8)


def _thetas(learned: bool, given: Tensor | None, heads: int, blocks: int, axes: int, seed: int) -> Tensor:
    """How fast each block turns along each axis at first, `[H|1, J, A]`."""
    if given is not None:
        return given
    if learned:
        return normal(seed + 1, heads, blocks, axes)
    return torch.eye(axes, dtype=torch.float64, device="cpu").repeat(-(-blocks // axes), 1)[None, :blocks]
