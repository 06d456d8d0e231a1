"""Solid glyphs: letters and digits cut out of a slab and turned in space, as volumes of any voxel size.

    Solids("train", size=16)                               # volume uint8 [1, 16, 16, 16], label: which glyph
    Solids("test", size=32)                                # zoom: the same solids in voxels of half the side
    Solids("test", size=(8, 16, 16))                       # the same solids in slices twice as thick
    Solids("test", size=32, spacing=1.0)                   # canvas: the same voxels, a field of view twice as wide
    Solids("test", size=(12, 32, 32), spacing=(2.0, 0.75, 0.75))

Lengths are in millimetres, the field is 16 mm a side. Axes are (z, y, x): before it is turned a glyph stands upright in y and x
and is as thick as the slab in z. It is turned about a random axis by at most `turn` degrees, spread as if all such turns were
equally likely (density of the angle proportional to its square), and put anywhere where it is inside as a whole.

Two glyphs that a turn by 180 degrees makes alike (6 and 9; 2 and 5, turned over) are never shown alike: two turns of at most
`turn` differ by at most twice that, hence `turn` below 90. N and Z are a quarter turn apart, hence at most 45 by default.

The value of a voxel is the share of it that is solid, times 255: the mean over samples in it, at least three along each axis and as
dense along thick axes as along thin ones. A sample looks at the outline drawn by FreeType at half the distance of samples, so
finer voxels show finer outlines and nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor

from train.glyphs import Glyphs, draw

FIELD = 16.0  # mm
SIDE, DEPTH = (0.55, 0.7), (0.15, 0.25)  # the larger side of the glyph's box, and the thickness of the slab, in fields
PER_VOXEL = 3  # samples along the finest axis of a voxel
SMALLEST = 4  # voxels along an axis


class Solids(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Volumes (uint8 [1, D, H, W], label). Solid i is a function of split, classes, seed, turn and i, seen at the asked voxels.

    size     voxels, one number or (depth, height, width)
    spacing  millimetres between voxels, one number or (z, y, x); None: the field of 16 mm, cut into `size` voxels
    turn     degrees, at most; 0 leaves all glyphs upright

    `spacing` holds the millimetres of an axis, `clusters` the font cluster of each solid, for a bootstrap over fonts.
    """

    def __init__(
        self,
        split: draw.Split,
        *,
        size: int | tuple[int, int, int] = 16,
        spacing: float | tuple[float, float, float] | None = None,
        classes: str = "0123456789",
        turn: float = 45.0,
        length: int = 10_000,
        seed: int = 0,
    ) -> None:
        self.glyphs = Glyphs(split, classes=classes, length=length, seed=seed)
        self.size = tuple(size) if isinstance(size, Sequence) else (size,) * 3
        if len(self.size) != 3 or not all(isinstance(n, int) and n >= SMALLEST for n in self.size):
            raise ValueError(f"size {size}: one whole number of voxels or (depth, height, width), each at least {SMALLEST}")
        if not 0 <= turn < 90:
            raise ValueError(f"turn {turn}: from 0 to below 90 degrees, for a 6 turned further could be a 9")
        self.spacing, self.turn = self._spacing(spacing), turn

    def _spacing(self, given: float | tuple[float, float, float] | None) -> tuple[float, ...]:
        """Millimetres between voxels, checked: the volume must hold the field."""
        if given is None:
            return tuple(FIELD / n for n in self.size)
        steps = tuple(map(float, given)) if isinstance(given, Sequence) else (float(given),) * 3
        if len(steps) != 3 or not all(0 < step < float("inf") for step in steps):
            raise ValueError(f"spacing {given}: one number of millimetres or (z, y, x), each above 0")
        if min(extent := [n * step for n, step in zip(self.size, steps)]) < FIELD * (1 - 1e-9):
            shown = " x ".join(f"{e:g}" for e in extent)
            raise ValueError(f"size {self.size} at spacing {given} is {shown} mm: a solid needs {FIELD:g} mm along each axis")
        return steps

    def __len__(self) -> int:
        return self.glyphs.length

    @cached_property
    def clusters(self) -> Tensor:
        """The font cluster of each solid, int64 [length]; nothing is drawn."""
        return self.glyphs.clusters

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Volumes uint8 [B, 1, D, H, W] and labels int64 [B]."""
        samples, streams = self.glyphs.samples(indices), draw.Streams()
        volumes = np.stack([self._volume(s, streams.at(*s.key, part=3).random(8)) for s in samples])
        return torch.from_numpy(volumes)[:, None], torch.tensor([s.label for s in samples])

    def _volume(self, s: draw.Sample, u: np.ndarray) -> np.ndarray:
        """Voxels uint8 [D, H, W], from eight uniforms: axis of the turn (2), angle, place (3), side, thickness."""
        side, depth = draw.between(float(u[6]), *SIDE) * FIELD, draw.between(float(u[7]), *DEPTH) * FIELD
        turn = rotation(u[:3], self.turn)
        box = np.array([depth, *draw.span(s.font, s.char, side)])
        reach = np.abs(turn) @ box / 2  # from the middle, along each axis
        extent = np.multiply(self.size, self.spacing)
        middle = reach + u[3:6] * (extent - 2 * reach)
        return voxels(s.font, s.char, box, turn, middle, self.size, self.spacing)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        volumes, labels = self.batch([index])
        return volumes[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        volumes, labels = self.batch(indices)
        return list(zip(volumes, labels.tolist()))


def rotation(u: np.ndarray, most: float) -> np.ndarray:
    """A turn [3, 3] by at most `most` degrees, from three uniforms, axis (2) and angle (Rodrigues: 1 + sin K + (1 - cos) K²)."""
    height, around, angle = 2 * u[0] - 1, 2 * np.pi * u[1], np.radians(most * np.cbrt(u[2]))
    flat = np.sqrt(1 - height**2)
    a, b, c = height, flat * np.sin(around), flat * np.cos(around)
    cross = np.array([[0, -c, b], [c, 0, -a], [-b, a, 0]])
    turned: np.ndarray = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return turned


def voxels(
    font: draw.Font,
    char: str,
    box: np.ndarray,
    turn: np.ndarray,
    middle: np.ndarray,
    size: Sequence[int],
    spacing: Sequence[float],
) -> np.ndarray:
    """Coverage uint8 [D, H, W] of a glyph of the box (depth, height, width), turned, its middle put at `middle`; all in mm."""
    steps, reach = np.array(spacing), np.abs(turn) @ box / 2
    low = np.maximum(np.floor((middle - reach) / steps) - 1, 0).astype(int)  # voxels that the solid may touch
    high = np.minimum(np.ceil((middle + reach) / steps) + 1, size).astype(int)
    fine = steps.min() / PER_VOXEL  # about the distance of samples
    counts = np.ceil(steps / fine - 1e-9).astype(int)  # samples of a voxel along each axis
    points = [(np.arange(a * k, b * k) + 0.5) * (step / k) - m for a, b, k, step, m in zip(low, high, counts, steps, middle)]
    grouped = np.stack([high - low, counts], 1).ravel()  # [6]
    part = solid(font, char, box, [along(row, points) for row in turn.T], fine).reshape(grouped).mean((1, 3, 5))
    whole = np.zeros(size, np.uint8)
    whole[tuple(map(slice, low, high))] = (part + 0.5).astype(np.uint8)
    return whole


def solid(font: draw.Font, char: str, box: np.ndarray, own: Sequence[np.ndarray], fine: float) -> np.ndarray:
    """How much of each sample, `fine` mm wide, is solid, 0 to 255, at coordinates z, y, x along the glyph's own axes."""
    unit = 2 / fine  # pixels of the outline a millimetre
    outline = draw.glyph(font, char, max(box[1:]) * unit, 2, 2, (ceil(box[1] * unit) + 4, ceil(box[2] * unit) + 4))
    y, x = ((v + extent / 2) * unit + 2 for v, extent in zip(own[1:], box[1:]))
    rows, columns = (np.clip(v, 0, n - 1).astype(np.int32) for v, n in zip((y, x), outline.shape))
    covered: np.ndarray = outline.astype(np.float32).ravel()[rows * outline.shape[1] + columns]
    return covered * np.clip((box[0] / 2 - np.abs(own[0])) / fine + 0.5, 0, 1)  # the part of a sample between the faces of the slab


def along(row: np.ndarray, points: Sequence[np.ndarray]) -> np.ndarray:
    """One coordinate of every point of a grid, row · (z, y, x): [D, H, W]."""
    z, y, x = ((weight * line).astype(np.float32) for weight, line in zip(row, points))
    total: np.ndarray = z[:, None, None] + y[:, None] + x
    return total
