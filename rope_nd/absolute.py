"""Absolute encodings: a code for each position, added to the patch tokens. `enc(positions, extent) -> [N, C]` or `[B, N, C]`."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ._check import check_extent, choose
from .positions import Extent, as_positions, grid
from .rope import RoPE
from .scaling import Scaling


class Sinusoidal(nn.Module):
    """Fixed sines and cosines of every axis (Vaswani 2017; MAE's two-dimensional form, any number of axes here).

    code[2i] = sin(<w_i, x>), code[2i + 1] = cos(<w_i, x>) with axial w: each axis has its own channels and whole spectrum,
    theta^(-i/F), theta 10000. The code at x + k is a linear function (a rotation) of the code at x. It takes the same
    scaling rules as a rotary encoding, since it has the same frequencies. Odd channels left over stay zero.
    """

    def __init__(
        self,
        dim: int,
        axes: int,
        *,
        theta: float | tuple[float, ...] = 10000.0,
        scaling: Scaling | None = None,
        trained_extent: tuple[int, ...] | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        self.dim = dim
        extent = {"trained_extent": trained_extent}
        self.table = RoPE(dim // 2 * 2, axes, theta=theta, scaling=scaling, **extent, **options)  # type: ignore[arg-type]

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[N, A]` -> `[N, C]`, `[B, N, A]` -> `[B, N, C]`, float32."""
        rotation = self.table(positions, extent)
        code = torch.stack((rotation.sin, rotation.cos), dim=-1).flatten(-2)  # [.., N, C]
        code = code.squeeze(-3) if code.ndim == 4 else code
        return nn.functional.pad(code, (0, self.dim - code.shape[-1]))

    def at(self, *extent: int) -> Tensor:
        """Codes of a token grid `[N, C]`."""
        code: Tensor = self(self.positions(*extent), extent)
        return code

    def positions(self, *extent: int) -> Tensor:
        """The coordinates `[N, A]` that `at` uses."""
        return self.table.positions(*extent)

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        """The coordinates `[.., A]` of chosen tokens, by their indices along each axis."""
        return self.table.place(indices, extent)

    @property
    def sized(self) -> bool:
        """Whether the size of the grid matters."""
        return self.table.sized


class Learned(nn.Module):
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

    def at(self, *extent: int) -> Tensor:
        """Codes of a token grid `[N, C]`."""
        code: Tensor = self(self.positions(*extent), extent)
        return code

    def positions(self, *extent: int) -> Tensor:
        """The coordinates `[N, A]` that `at` uses: the tokens' indices."""
        return grid(*extent, device=self.table.device)

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        """The coordinates `[.., A]` of chosen tokens: their indices."""
        return indices.float()

    @property
    def sized(self) -> bool:
        """Whether the size of the grid matters."""
        return self.stretch

    def no_weight_decay(self) -> set[str]:
        return {"table"}

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
