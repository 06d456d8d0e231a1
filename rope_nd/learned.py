"""A learned table of positions, read between its entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ._check import check_extent, choose
from .absolute import Absolute, check_rank, check_width, squeezed
from .positions import Extent, as_positions

Mode = Literal["cubic", "linear"]


class Learned(Absolute):
    """A learned table, one code for each token of the trained grid (ViT, Dosovitskiy 2021), read between its entries.

    With `scaling="pi"` (what everybody does) the table is laid over the grid at hand by separable interpolation, cubic or
    linear as `mode` says; with `"none"` token i reads entry i, and what lies beyond the trained grid reads the border. One
    name for all axes or one an axis (a video may keep its times and stretch its images). The trained grid reads the table
    as it is, either way.

    `antialias`: False is `F.interpolate(.., antialias=False)`, with Keys' kernel at a = -0.75 and a repeated border. True is
    `antialias=True`: on an axis with fewer tokens than the table has entries the kernel is as wide as a token, so that all
    entries count; a = -0.5, and the border is not repeated but left out, at larger sizes too.
    """

    def __init__(
        self,
        dim: int,
        axes: int,
        *,
        trained_extent: tuple[int, ...] | None = None,
        scaling: str | Sequence[str | None] | None = "pi",
        mode: Mode = "cubic",
        antialias: bool = False,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        check_width("learned", dim, axes, 1)
        if trained_extent is None or len(trained_extent) != axes:
            raise ValueError(f"trained_extent={trained_extent!r}: a learned table needs its size, {axes} token counts")
        self.dim, self.axes = dim, axes
        self.extent = check_extent(tuple(trained_extent), "trained_extent")
        self.squeezed = squeezed("a learned table", scaling, axes)
        self.stretch = any(self.squeezed)
        self.mode: Mode = choose("mode", mode, get_args(Mode))  # type: ignore[assignment]
        self.antialias, self.std = antialias, std
        self.table = nn.Parameter(torch.empty(*self.extent, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=self.std)

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[N, A]` -> `[N, C]`, `[B, N, A]` -> `[B, N, C]`; positions in tokens of the grid `extent`."""
        check_rank(extent, self.axes)
        kind = torch.promote_types(self.table.dtype, torch.float32)  # bfloat16 cannot tell entry 257 from 256
        points = as_positions(positions, self.axes).to(kind)
        code = self.table.to(kind)
        for axis, count in enumerate(self.extent):
            size = extent[axis] if extent is not None and self.squeezed[axis] else count
            step = torch.scalar_tensor(count, dtype=kind, device=points.device) / size  # a token, in entries of the table
            weights = self._weights((points[..., axis] + 0.5) * step - 0.5, step, count)  # [.., N, T_a]
            if axis == 0:
                code = (weights @ code.flatten(1)).unflatten(-1, code.shape[1:])  # [.., N, T_2, .., C]
            else:
                rest = code.shape[weights.ndim :]  # the sizes of later axes, and C
                code = torch.einsum("...t,...tc->...c", weights, code.flatten(weights.ndim)).unflatten(-1, rest)
        return code.to(self.table.dtype)

    @property
    def sized(self) -> bool:
        return self.stretch

    def _weights(self, at: Tensor, step: Tensor, count: int) -> Tensor:
        return wide_weights(at, step, count, self.mode) if self.antialias else weights(at, count, self.mode)


def weights(at: Tensor, count: int, mode: Mode) -> Tensor:
    """Interpolation weights of every table entry for coordinates `at` `[.., N]` -> `[.., N, T]`; the border repeats."""
    reach = 2 if mode == "cubic" else 1
    first = at.floor()
    total = at.new_zeros(*at.shape, count)
    for step in range(1 - reach, reach + 1):
        entry = (first + step).clamp(0, count - 1).long()
        total = total.scatter_add(-1, entry[..., None], kernel((at - first - step).abs(), mode, -0.75)[..., None])
    return total


def wide_weights(at: Tensor, step: Tensor, count: int, mode: Mode) -> Tensor:
    """The same with a kernel as wide as a token where that is more than an entry: k((j - x) / max(1, step)), of sum one.

    What lies beyond the first and last token of the grid reads those.
    """
    edge = (step.clamp(max=1) - 1) / 2
    inside = torch.minimum(torch.maximum(at, edge), count - 1 - edge)[..., None]  # [.., N, 1]
    entries = torch.arange(count, device=at.device).to(at.dtype)
    each = kernel(((inside - entries) / step.clamp(min=1)).abs(), mode, -0.5)  # [.., N, T]
    return each / each.sum(-1, keepdim=True)


def kernel(t: Tensor, mode: Mode, a: float) -> Tensor:
    """The weight of an entry at distance t >= 0: Keys' cubic convolution of parameter a, zero from 2, or a tent, zero from 1."""
    if mode == "linear":
        return (1 - t).clamp(min=0)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return torch.where(t <= 1, near, torch.where(t < 2, far, 0))
