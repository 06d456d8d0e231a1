"""Absolute encodings: a code for each position, added to the patch tokens. `enc(positions, extent) -> [N, C]` or `[B, N, C]`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .positions import Extent, grid
from .rope import RoPE
from .scaling import Scaling


class Absolute(nn.Module):
    """What absolute encodings have in common: positions are the tokens' indices, unless a subclass says otherwise.

    Subclasses give `forward(positions [N, A] or [B, N, A], extent) -> [N, C] or [B, N, C]`, `extent` the tokens an axis of the
    whole grid.
    """

    dim: int
    axes: int

    def at(self, *extent: int) -> Tensor:
        """Codes of a token grid `[N, C]`."""
        code: Tensor = self(self.positions(*extent), extent)
        return code

    def positions(self, *extent: int) -> Tensor:
        """The coordinates `[N, A]` that `at` uses."""
        return grid(*extent, device=next((t.device for t in (*self.parameters(), *self.buffers())), None))

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        """The coordinates `[.., A]` of chosen tokens, by their indices along each axis."""
        return indices.float()

    @property
    def sized(self) -> bool:
        """Whether the size of the grid matters."""
        return True

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay must leave alone: all."""
        return {name for name, _ in self.named_parameters()}


class Sinusoidal(Absolute):
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
        self.dim, self.axes = dim, axes
        extent = {"trained_extent": trained_extent}
        self.table = RoPE(dim // 2 * 2, axes, theta=theta, scaling=scaling, **extent, **options)  # type: ignore[arg-type]

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[N, A]` -> `[N, C]`, `[B, N, A]` -> `[B, N, C]`, float32."""
        rotation = self.table(positions, extent)
        code = torch.stack((rotation.sin, rotation.cos), dim=-1).flatten(-2)  # [.., N, C]
        code = code.squeeze(-3) if code.ndim == 4 else code
        return nn.functional.pad(code, (0, self.dim - code.shape[-1]))

    def positions(self, *extent: int) -> Tensor:
        return self.table.positions(*extent)

    def place(self, indices: Tensor, extent: Extent) -> Tensor:
        return self.table.place(indices, extent)

    @property
    def sized(self) -> bool:
        return self.table.sized
