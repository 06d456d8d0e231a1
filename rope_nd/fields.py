"""Bias that depends on distance: LookHere's fixed fields of view, and FIRE's learned function."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ._check import check_extent
from .bias import Bias, length, offsets, read
from .positions import Extent, wide

Vector = tuple[float, ...]


def towards(count: int, axes: int) -> list[Vector]:
    """Up to `count` unit vectors, in opposite pairs, well spread: of the corners and the sides of a cube.

    Pairs are taken one by one, each the farthest from those before, corners first where several are: two for one axis; four
    corners and four sides for two, the eight directions of LookHere; eight corners and six sides for three. There are no more.
    """
    corners = [(1, *signs) for signs in product((1, -1), repeat=axes - 1)]
    sides = [tuple(int(axis == other) for other in range(axes)) for axis in range(axes)]
    left = [_unit(line) for line in dict.fromkeys([*corners, *sides])]
    found: list[Vector] = []
    while left and len(found) < count:
        line = min(left, key=lambda one: round(max((_dot(one, other) for other in found), default=0.0), 9))
        left.remove(line)
        found += [line, tuple(-part for part in line)]
    return found[:count]


def _unit(line: tuple[int, ...]) -> Vector:
    size = math.sqrt(sum(part * part for part in line))
    return tuple(part / size for part in line)


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b))


def _turned(line: Vector, angle: float) -> Vector:
    """A vector of two axes, turned."""
    (y, x), cos, sin = line, math.cos(angle), math.sin(angle)
    return cos * y - sin * x, sin * y + cos * x


def sees(parts: list[Tensor], distance: Tensor, way: Vector, fov: float) -> Tensor:
    """Whether offsets, given by their parts and length, lie in a cone of `fov` degrees around a direction, its edge included."""
    along = parts[0] * way[0]
    for part, to in zip(parts[1:], way[1:]):
        along = along + part * to
    return along >= (math.cos(math.radians(fov / 2)) - 1e-6) * distance


class LookHere(Bias):
    """Directed attention (LookHere, Fuller 2024), for any number of axes and heads: a head sees what lies one way.

    bias[h, i, j] = -m |x_j - x_i| where <x_j - x_i, u_h> >= cos(fov / 2) |x_j - x_i|, else minus infinity; a token always sees
    itself. m = slope · layer slope · m_h. Nothing is learned, and nothing depends on the size of the grid.

    - Heads: two thirds are directed (rounded to an even number: 8 of 12, 4 of 6, 2 of 3, none of one), the others, last, see
      all around; `directed` says otherwise.
    - Directions: see `towards`; two axes have the paper's eight, one axis has two. Heads beyond the number of directions
      begin again. With two axes and a field of view of 45 degrees or less they are turned by 22.5, as the paper's eighths.
    - Slopes m_h: 1/2 for the first head of each direction, 1/4 for the second, 1/8, .. ; 1/4, 1/16, 1/64, 1/256 for heads that
      see all around (the same four where there are more).
    - The layer slope falls with `depth`, where the layer stands from 0, the first, to 1, the last: linearly between
      `layer_slopes`. A list for a model is `LookHere.stack(layers, heads, axes)`. `slope` is for all (2 in the published LH-90).
    - `fov`: field of view in degrees, the paper's are 45, 90 and 180. By default 90, and 120 for three axes or more, where
      eight directions of 90 degrees would leave the nearest tokens unseen.

    Use it for inputs larger than those trained on: what a head sees of its surroundings stays the same.
    """

    hides = True
    layered = True

    def __init__(
        self,
        heads: int,
        axes: int,
        *,
        fov: float | None = None,
        directed: int | None = None,
        slope: float = 1.0,
        layer_slopes: tuple[float, float] = (1.5, 0.5),
        depth: float = 0.5,
    ) -> None:
        super().__init__(heads, axes)
        self.fov = (90.0 if axes < 3 else 120.0) if fov is None else fov
        self.directed = 2 * ((heads + 1) // 3) if directed is None else directed
        if not 0 < self.fov <= 360:
            raise ValueError(f"fov={fov!r}: give degrees above 0, up to 360; the paper's are 45, 90 and 180")
        if not 0 <= self.directed <= heads:
            raise ValueError(f"directed={directed!r}: give from 0 to {heads}, the number of heads")
        if not 0 <= depth <= 1:
            raise ValueError(f"depth={depth!r}: give from 0, the first layer, to 1, the last")
        if not isinstance(layer_slopes, (tuple, list)) or len(layer_slopes) != 2 or min(slope, *layer_slopes) < 0:
            raise ValueError(f"slope={slope!r}, layer_slopes={layer_slopes!r}: give a number, and (first, last), of at least 0")
        self.slope = slope * (layer_slopes[0] + depth * (layer_slopes[1] - layer_slopes[0]))
        ways = towards(self.directed, axes)
        if axes == 2 and self.fov <= 45:
            ways = [_turned(way, math.pi / 8) for way in ways]
        around = heads - self.directed
        ahead = [(ways[head % len(ways)], 2.0 ** -(1 + head // len(ways))) for head in range(self.directed)]
        every = [(None, 4.0 ** -(1 + head // -(-around // 4))) for head in range(around)]
        self.views: list[tuple[Vector | None, float]] = [*ahead, *every]  # for each head its direction and slope m_h

    @classmethod
    def stack(cls, layers: int, heads: int, axes: int, **options: Any) -> nn.ModuleList:
        """One a layer, at depths from 0 to 1."""
        depths = [layer / max(layers - 1, 1) for layer in range(layers)]
        return nn.ModuleList([cls(heads, axes, **{"depth": depth, **options}) for depth in depths])

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        parts = offsets(query, key)
        distance = length(parts)  # [.., Nq, Nk]
        heads = []  # one by one: all at once would take several times the memory of the result
        for way, slope in self.views:
            bias = (-slope * self.slope * distance).float()
            heads.append(bias if way is None else torch.where(sees(parts, distance, way, self.fov), bias, -math.inf))
        return torch.stack(heads, dim=-3)


def pieces(weight: Tensor, offset: Tensor, out: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pieces of z -> out · relu(weight z + offset) + bias, a network of one number with one hidden layer, W units wide.

    `[W]`, `[W]`, `[H, W]`, `[H]` -> where pieces end `[W]`, and slopes and levels of the W + 1 pieces, `[W + 1, H]` each: the
    network is slope · z + level. Reading pieces takes no memory for hidden units, of which each pair of tokens would have W.
    """
    with torch.no_grad():
        ends, order = torch.where(weight != 0, -offset / weight, math.inf).sort()
    weight, offset, out = weight[order], offset[order], out[:, order]
    unit = torch.arange(len(ends), device=ends.device)
    is_above = torch.arange(len(ends) + 1, device=ends.device) > unit[:, None]  # [W, W + 1]: a piece above where a unit turns
    rising, falling, always = (sign[:, None] for sign in (weight > 0, weight < 0, (weight == 0) & (offset > 0)))
    active = (rising & is_above) | (falling & ~is_above) | always
    slopes = ((out * weight)[..., None] * active).sum(1).mT  # no matmul: autocast would lower it
    levels = ((out * offset)[..., None] * active).sum(1).mT + bias
    return ends, slopes, levels


class FIRE(Bias):
    """Functional interpolation (FIRE, Li 2024), for any number of axes: a learned function of relative distance.

    bias[:, i, j] = f(psi(|x_j - x_i|) / psi(max(L, r_i))), psi(z) = ln(c z + 1), f a network of one number with a hidden layer
    of `width` rectified units, c > 0 and L > 0 learned (as their logarithms).

    |..| is the Euclidean distance in tokens. r_i is the distance from the query to the farthest corner of the grid `extent`:
    in causal text, where the farthest key is the first, that is the query's position, the paper's. So f is asked of numbers
    from 0 to 1 only, however large the grid. Grids that reach less far than L are not normalised by their size.

    c starts at 1 and L at the diagonal of `trained_extent` (16 tokens if not given): there the bias begins as a function of
    distance alone, and larger grids are squeezed into what was trained. The paper's 0.1 and 512 are for text of 2048 tokens.
    Each layer has its own; one module for all layers is the paper's FIRE-S. Use it where sizes vary, and directions do not
    matter: it learns what ALiBi fixes.
    """

    sized = True
    layered = True

    def __init__(
        self,
        heads: int,
        axes: int,
        *,
        width: int = 32,
        c: float = 1.0,
        threshold: float | None = None,
        trained_extent: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(heads, axes)
        if trained_extent is not None and len(check_extent(tuple(trained_extent), "trained_extent")) != axes:
            raise ValueError(f"trained_extent={trained_extent!r} has {len(trained_extent)} entries for axes={axes}")
        if threshold is None:
            threshold = 16.0 if trained_extent is None else max(1.0, math.dist((1,) * axes, trained_extent))
        if width < 1 or not 0 < c < math.inf or not 0 < threshold < math.inf:
            raise ValueError(f"width={width!r}, c={c!r}, threshold={threshold!r}: give positive numbers")
        self.initial = (c, threshold)
        self.log_c = nn.Parameter(torch.empty(1))
        self.log_threshold = nn.Parameter(torch.empty(1))
        self.hidden, self.out = nn.Linear(1, width), nn.Linear(width, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter, value in zip((self.log_c, self.log_threshold), self.initial):
            nn.init.constant_(parameter, math.log(value))
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        kind = wide(query.device)
        c, threshold, place = self.log_c.to(kind).exp(), self.log_threshold.to(kind).exp(), query.to(kind)
        corner = torch.maximum(place.abs(), (self.whole(extent) - 1 - place).abs())  # [.., Nq, A], the offset to the farthest
        most = torch.maximum(threshold, corner.square().sum(-1).sqrt())[..., None]  # [.., Nq, 1]
        ratio = (torch.log1p(c * length(offsets(query, key))) / torch.log1p(c * most)).float()  # [.., Nq, Nk]
        layers = (self.hidden.weight[:, 0], self.hidden.bias, self.out.weight, self.out.bias)
        ends, slopes, levels = pieces(*(parameter.float() for parameter in layers))
        piece = torch.bucketize(ratio.detach(), ends)
        return read(slopes, piece) * ratio[..., None, :, :] + read(levels, piece)
