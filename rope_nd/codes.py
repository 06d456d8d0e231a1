"""Codes of one coordinate, set side by side for any number of axes: integer, binary, hierarchical, wavelet. Nothing is learned.

A code is `code(x [.., N], width, length) -> [.., N, W]`, W <= width: `x` holds coordinates in tokens, float64 where the device
has it, `length` the tokens of the trained axis (None if nobody said). With too few channels to work it gives none (W = 0). A code
knows one axis; `Code` deals the channels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ._check import check_extent, check_options, choose
from .absolute import Absolute, check_rank, check_width, squeezed
from .positions import Extent, as_positions, grid, sizes, wide

Along = Callable[[Tensor, int, int | None], Tensor]


def integer(x: Tensor, width: int, length: int | None = None) -> Tensor:
    """The coordinate itself, x, in every channel, with alternating signs: the first idea one has, where the story starts.

    code[j] = (-1)^j x, as the same number in all channels would be taken away with the mean by the first layer norm. Larger grids
    give larger numbers, which soon drown the tokens, and the network has seen none of them. A baseline.
    """
    return x[..., None] * (1 - 2 * (torch.arange(width, device=x.device) % 2))


def binary(x: Tensor, width: int, length: int | None = None, *, bits: int = 16) -> Tensor:
    """The bits of floor(x), lowest first, as -1 and +1: bounded where the integer is not, but it jumps from 7 to 8.

    code[j] = 2 (floor(x / 2^j) mod 2) - 1, j < J = min(bits, width). What lies beyond reads the nearest number there is, 2^J - 1
    or 0: it is not told apart, but nothing starts over. Fractions are not seen, so squeezed neighbours may coincide. A baseline.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 52:
        raise ValueError(f"bits={bits!r}: give a whole number from 1 to 52")
    power = 2.0 ** torch.arange(min(bits, width), device=x.device).to(x.dtype)  # [J]
    number = x.floor().clamp(0, 2 ** min(bits, width) - 1)[..., None]
    return 2 * torch.remainder((number / power).floor(), 2) - 1


def sines(x: Tensor, pairs: int, theta: float) -> Tensor:
    """code[2i] = sin(w_i x), code[2i + 1] = cos(w_i x), w_i = theta^(-i / P) (Vaswani 2017): `[.., N]` -> `[.., N, 2P]`."""
    phase = x[..., None] * theta ** (-torch.arange(pairs, device=x.device).to(x.dtype) / max(pairs, 1))  # [.., N, P]
    return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(-2)


def hierarchical(x: Tensor, width: int, length: int | None = None, *, block: float = 8, theta: float = 10000.0) -> Tensor:
    """Which block, and where in it: sinusoidal codes of floor(x / block) and of x mod block, half of the channels each.

    code = sines(floor(x / block)) ++ sines(x mod block), the absolute form of HiRoPE's two levels (Zhang 2024), `block` in tokens.
    For larger fields of view: offsets inside a block are among the trained ones at any size, and block numbers grow `block`
    times slower than positions. Neighbours on two sides of a border look far apart.
    """
    for name, value in (("block", block), ("theta", theta)):
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r}: give a positive number")
    coarse = (x / block).floor()
    return torch.cat((sines(coarse, width // 4, theta), sines(x - block * coarse, width // 4, theta)), dim=-1)


def ricker(t: Tensor) -> Tensor:
    """The second derivative of a Gaussian, 2 / (sqrt(3) pi^(1/4)) (1 - t^2) exp(-t^2 / 2)."""
    return 2 / (math.sqrt(3) * math.pi**0.25) * (1 - t**2) * (-(t**2) / 2).exp()


def morlet(t: Tensor) -> Tensor:
    """A wave in a Gaussian, pi^(-1/4) cos(5 t) exp(-t^2 / 2)."""
    return math.pi**-0.25 * (5 * t).cos() * (-(t**2) / 2).exp()


def haar(t: Tensor) -> Tensor:
    """A step up and down: +1 for 0 <= t < 1/2, -1 for 1/2 <= t < 1."""
    return ((t >= 0) & (t < 0.5)).to(t.dtype) - ((t >= 0.5) & (t < 1)).to(t.dtype)


MOTHERS: dict[str, Callable[[Tensor], Tensor]] = {"ricker": ricker, "morlet": morlet, "haar": haar}


def wavelet(x: Tensor, width: int, length: int | None = None, *, mother: str = "ricker", scales: int | None = None) -> Tensor:
    """A bank of wavelets over the trained axis: psi((x - b) / a), a = 2^0 .. 2^S (Oka 2025's, of positions and not distances).

    Of `scales` = S + 1 scales (those up to `length` by default) the s-th has K_s = 1 + floor((width - S - 1) 2^(S - s) /
    (2^(S + 1) - 1)) shifts, the finer the more, evenly over the axis: b = k length / K_s, k = 0 .. K_s - 1.
    Where places matter more than directions or distances: a channel is about a place, at one scale. Far beyond the trained axis
    all are zero: squeeze larger grids (`"pi"`).
    """
    psi = MOTHERS[choose("mother", mother, MOTHERS)]
    if length is None:
        raise ValueError("trained_extent=None: wavelets cover the trained extent, give its tokens an axis, for example (14, 14)")
    if scales is not None and (isinstance(scales, bool) or not isinstance(scales, int) or scales < 1):
        raise ValueError(f"scales={scales!r}: give a whole number of at least 1")
    count = scales or min(width, length.bit_length())
    if width < count:
        return x.new_zeros(*x.shape, 0)
    found = []
    for s in range(count):
        shifts = 1 + (width - count) * 2 ** (count - 1 - s) // (2**count - 1)
        shift = torch.arange(shifts, device=x.device).to(x.dtype) * length / shifts  # [K]
        found.append(psi((x[..., None] - shift) / 2**s))
    return torch.cat(found, dim=-1)


CODES: dict[str, Callable[..., Tensor]] = {code.__name__: code for code in (integer, binary, hierarchical, wavelet)}


class Code(Absolute):
    """A code of each axis, side by side: `Code(384, 2, "binary")`.

    Each axis has floor(dim / axes) channels, in axis order; what a code does not fill is zero, at the end of its axis's share,
    and so is what is left over, at the end of all. Computed in float64 where the device has it, returned in float32 whatever
    the module is cast to. The state dict is empty.

    - `code`: a name of `CODES`, or any function with a code's signature.
    - `scaling`: `"pi"` multiplies coordinates by min(1, trained / extent), per axis; `"none"` (None) takes them as they are; one
      name for all axes, or one an axis. `trained_extent`: tokens an axis.
    - further options go to the code, one value for all axes or a tuple of one an axis: `block=(2, 8, 8)`.

    Raises ValueError for unknown names and options, and for too few channels, with the least that works.
    """

    def __init__(
        self,
        dim: int,
        axes: int,
        code: str | Along = "binary",
        *,
        scaling: str | Sequence[str | None] | None = None,
        trained_extent: tuple[int, ...] | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        function = CODES[choose("code", code, CODES)] if isinstance(code, str) else code
        self.name = getattr(function, "__name__", type(function).__name__)
        check_width(self.name, dim, axes, 1)
        check_options(f"code {self.name!r}", options, function)
        self.dim, self.axes, self.scaling = dim, axes, scaling
        self.squeezed = squeezed("a code", scaling, axes)
        self.trained_extent = trained(trained_extent, axes)
        if any(self.squeezed) and trained_extent is None:
            raise ValueError(f"scaling={scaling!r} needs trained_extent, tokens an axis, for example {(14,) * axes}")
        self.along = [partial(function, **of_axis(options, axis, axes)) for axis in range(axes)]
        check_width(self.name, dim, axes, axes * self._least())
        self.device = torch.get_default_device()

    def forward(self, positions: Tensor, extent: Extent | None = None) -> Tensor:
        """`[N, A]` -> `[N, C]`, `[B, N, A]` -> `[B, N, C]`, float32; positions in tokens of the grid `extent`."""
        check_rank(extent, self.axes)
        points = as_positions(positions, self.axes)
        points = points.to(wide(points.device))
        width, parts = self.dim // self.axes, []
        for axis, (along, length) in enumerate(zip(self.along, self.trained_extent)):
            x = points[..., axis]  # [.., N]
            if self.squeezed[axis] and length is not None:
                x = squeeze(x, length, self._count(extent, points.device)[axis])
            part = along(x, width, length)  # [.., N, W]
            if part.shape[-1] > width:
                raise ValueError(f"code {self.name!r} gave {part.shape[-1]} channels: it was asked for at most {width}")
            parts.append(nn.functional.pad(part, (0, width - part.shape[-1])))
        return nn.functional.pad(torch.cat(parts, dim=-1), (0, self.dim - self.axes * width)).float()

    def positions(self, *extent: int) -> Tensor:
        return grid(*extent, device=self.device)

    @property
    def sized(self) -> bool:
        return any(self.squeezed)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, axes={self.axes}, code={self.name!r}, scaling={self.scaling!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Code:
        """Remember where the module is moved to: it holds no tensor that would."""
        super()._apply(fn, recurse)
        self.device = fn(torch.empty(0, device=self.device)).device
        return self

    def _count(self, extent: Extent | None, device: torch.device) -> Tensor:
        if extent is None:
            raise ValueError(
                f"extent=None, but scaling={self.scaling!r} depends on it: call enc(positions, extent) with the whole grid's "
                "tokens an axis, or enc.at(*extent)"
            )
        return sizes(extent, device)

    def _least(self) -> int:
        """The least number of channels an axis with which the code works on every axis."""
        nowhere = torch.zeros(0, dtype=torch.float64, device="cpu")

        def works(width: int) -> bool:
            return all(along(nowhere, width, length).shape[-1] for along, length in zip(self.along, self.trained_extent))

        return next((width for width in range(1, 1025) if works(width)), 1025)


def squeeze(x: Tensor, length: int, count: Tensor) -> Tensor:
    """x min(1, length / count); multiplied first, so that what falls on a token falls on it exactly."""
    return torch.where(count > length, x * length / count, x)


def of_axis(options: Mapping[str, object], axis: int, axes: int) -> dict[str, Any]:
    """The options of one axis, where a tuple holds one value an axis."""
    for name, value in options.items():
        if isinstance(value, (tuple, list)) and len(value) != axes:
            raise ValueError(f"{name}={value!r} has {len(value)} entries for axes={axes}: give one value, or one an axis")
    return {name: value[axis] if isinstance(value, (tuple, list)) else value for name, value in options.items()}


def trained(extent: tuple[int, ...] | None, axes: int) -> tuple[int | None, ...]:
    """Tokens of each trained axis, None for all where nobody said."""
    if extent is None:
        return (None,) * axes
    if not isinstance(extent, (tuple, list)) or len(extent) != axes:
        raise ValueError(f"trained_extent={extent!r}: give the token count of each of axes={axes}, for example {(14,) * axes}")
    return check_extent(tuple(extent), "trained_extent")
