"""Absolute encodings: a code for each position, added to the patch tokens. `enc(positions, extent) -> [N, C]` or `[B, N, C]`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ._check import choose, per_axis
from .positions import Extent, grid
from .rope import RoPE
from .scaling import Scaling

ROTARY = ("heads", "layout", "prefix_tokens", "rotary_dim", "rotate_dtype", "temperature")  # what a RoPE has and a code has not


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


def check_width(what: str, dim: int, axes: int, least: int) -> None:
    """Raise ValueError unless `axes` is a number of axes, and `dim` channels are at least `least`."""
    for name, value in (("dim", dim), ("axes", axes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}: give a whole number of at least 1")
    if dim < least:
        raise ValueError(f"dim={dim} is too narrow for the {what} code on axes={axes}: the least that works is dim={least}")


def check_rank(extent: Extent | None, axes: int) -> None:
    """Raise ValueError unless `extent` has one entry an axis."""
    if extent is not None and len(extent) != axes:
        raise ValueError(f"extent={tuple(extent)!r} has {len(extent)} entries: this encoding has axes={axes}")


def squeezed(what: str, scaling: str | Sequence[str | None] | None, axes: int) -> tuple[bool, ...]:
    """Which axes are squeezed into the trained extent: `"pi"`, or `"none"` (None), for all of them or one an axis."""
    each = tuple(scaling) if isinstance(scaling, (tuple, list)) else (scaling,) * axes
    if len(each) != axes:
        raise ValueError(f"scaling={scaling!r} has {len(each)} entries for {axes} axes: give one name, or one an axis")
    return tuple(choose(f"scaling for {what}", "none" if name is None else name, ("pi", "none")) == "pi" for name in each)


class Sinusoidal(Absolute):
    """Fixed sines and cosines of every axis (Vaswani 2017; MAE's two-dimensional form, any number of axes here).

    code[2i] = sin(<w_i, x>), code[2i + 1] = cos(<w_i, x>) with axial w: each axis has its own channels and whole spectrum,
    theta^(-i/F), theta 10000. The code at x + k is a linear function (a rotation) of the code at x. It takes the same
    frequencies (`freqs`: a family or wave vectors `[C / 2, A]`), coordinates and scaling rules as a rotary encoding. Odd
    channels left over stay zero. The one to begin with: nothing is learned, and no two positions are alike.
    """

    def __init__(
        self,
        dim: int,
        axes: int,
        freqs: str | Tensor = "axial",
        *,
        theta: float | tuple[float, ...] | None = None,
        scaling: Scaling | None = None,
        trained_extent: tuple[int, ...] | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        named = isinstance(freqs, str)
        check_width("sinusoidal", dim, axes, 2 * axes if named else 2)
        for name in sorted(set(options) & set(ROTARY)):
            raise ValueError(f"{name}={options[name]!r} is for a rotary encoding: leave it out, a sinusoidal code has none")
        base = 10000.0 if named and theta is None else theta
        extent = {"trained_extent": trained_extent}
        self.dim, self.axes = dim, axes
        self.table = RoPE(dim // 2 * 2, axes, freqs, theta=base, scaling=scaling, **extent, **options)  # type: ignore[arg-type]
        if len(self.table.freqs) != 1:
            raise ValueError(f"freqs of shape {list(self.table.freqs.shape)}: a code has no heads, give [1, {dim // 2}, {axes}]")

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


def fourier(
    dim: int,
    axes: int,
    *,
    sigma: float | tuple[float, ...] = 2.0,
    learned: bool = False,
    seed: int = 0,
    scaling: Scaling | None = None,
    trained_extent: tuple[int, ...] | None = None,
    coordinates: dict[str, object] | None = None,
) -> Sinusoidal:
    """Random Fourier features (Tancik 2020): a sinusoidal code with Gaussian wave vectors, which look in all directions.

    code[2i] = sin(2 pi <b_i, x>), code[2i + 1] = cos(2 pi <b_i, x>), b_i ~ N(0, sigma^2) cycles over the image; x in (0, 1) on each
    axis, so the whole grid is stretched over the trained one whatever its size, and a `scaling` rule only says in what way.
    For a token's distance to mean the same at every size: `coordinates={"normalize": "unit", "by": "reference",
    "reference": (14, 14)}`.

    `sigma` is one number or one an axis; the default is the Segment Anything Model's. With `learned` the vectors are trained
    (Li 2021, without its network behind them). Needs two channels. When nearby positions, in any direction, should look
    alike at a chosen distance: <code(x), code(y)> is close to C/2 exp(-2 pi^2 sigma^2 |x - y|^2).
    """
    check_width("fourier", dim, axes, 2)
    widths = torch.tensor(per_axis("sigma", sigma, axes), dtype=torch.float64, device="cpu")  # [A]
    generator = torch.Generator(device="cpu").manual_seed(seed)
    normal = torch.randn(dim // 2, axes, generator=generator, dtype=torch.float64, device="cpu")  # [P, A]
    placed = {"normalize": "unit"} if coordinates is None else coordinates
    extent = {"scaling": scaling, "trained_extent": trained_extent}
    return Sinusoidal(dim, axes, 2 * math.pi * normal * widths, coordinates=placed, learned=learned, **extent)  # type: ignore[arg-type]
