"""A learned table of positions, read between its entries."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ._check import check_extent, choose
from .absolute import Absolute
from .positions import Extent, as_positions


class Learned(Absolute):
    """A learned table, one code for each token of the trained grid (ViT, Dosovitskiy 2021), read between its entries.

    With `scaling="pi"` (what everybody does) the table is laid over the grid at hand by separable cubic (a = -0.75, as
    `F.interpolate`) or linear interpolation, without antialiasing; with `"none"` token i reads entry i, and what lies
    beyond the trained grid reads the border. The trained grid reads the table as it is, either way.
    """

    def __init__(
        self,
        dim: int,
        axes: int,
        *,
        trained_extent: tuple[int, ...] | None = None,
        scaling: str | None = "pi",
        mode: Literal["cubic", "linear"] = "cubic",
        std: float = 0.02,
    ) -> None:
        super().__init__()
        if trained_extent is None or len(trained_extent) != axes:
            raise ValueError(f"trained_extent={trained_extent!r}: a learned table needs its size, {axes} token counts")
        self.dim, self.axes = dim, axes
        self.extent = check_extent(tuple(trained_extent), "trained_extent")
        self.stretch = choose("scaling for a learned table", scaling or "none", ("pi", "none")) == "pi"
        self.mode = choose("mode", mode, get_args(Literal["cubic", "linear"]))
        self.std = std
        self.table = nn.Parameter(torch.empty(*self.extent, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=self.std)

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[N, A]` -> `[N, C]`, `[B, N, A]` -> `[B, N, C]`; positions in tokens of the grid `extent`."""
        kind = torch.promote_types(self.table.dtype, torch.float32)  # bfloat16 cannot tell entry 257 from 256
        points = as_positions(positions, len(self.extent)).to(kind)
        size = extent if self.stretch and extent is not None else self.extent
        ratio = torch.stack([torch.scalar_tensor(t, dtype=kind, device=points.device) / n for t, n in zip(self.extent, size)])
        at = (points + 0.5) * ratio - 0.5  # [.., N, A], in entries of the table
        code = self.table.to(kind)
        for axis, count in enumerate(self.extent):
            weights = self._weights(at[..., axis], count)  # [.., N, T_a]
            if axis == 0:
                code = (weights @ code.flatten(1)).unflatten(-1, code.shape[1:])  # [.., N, T_2, .., C]
            else:
                rest = code.shape[weights.ndim :]  # the sizes of later axes, and C
                code = torch.einsum("...t,...tc->...c", weights, code.flatten(weights.ndim)).unflatten(-1, rest)
        return code.to(self.table.dtype)

    @property
    def sized(self) -> bool:
        return self.stretch

    def _weights(self, at: Tensor, count: int) -> Tensor:
        """Interpolation weights of every table entry for coordinates `at` `[.., N]` -> `[.., N, T]`; the border repeats."""
        reach = 2 if self.mode == "cubic" else 1
        first = at.floor()
        total = at.new_zeros(*at.shape, count)
        for step in range(1 - reach, reach + 1):
            entry = (first + step).clamp(0, count - 1).long()
            weight = _cubic((at - first - step).abs()) if reach == 2 else 1 - (at - first - step).abs()
            total = total.scatter_add(-1, entry[..., None], weight[..., None])
        return total


def _cubic(t: Tensor, a: float = -0.75) -> Tensor:
    """Keys' cubic convolution kernel for 0 <= t <= 2."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return torch.where(t <= 1, near, far)
