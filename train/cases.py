"""Cases: what the inputs of one test are at one size. Everything that makes, measures or names test inputs asks here.

    case(config, "longer", 2)       # clips of 8 frames of 32 px: Case("longer", 2.0, (16, 32, 32), (0.125, 1.0, 1.0))
    case(config, "rate", 2)         # the same seconds, twice the frames: Case("rate", 2.0, (16, 32, 32), (0.0625, 1.0, 1.0))
    case(config, "slices", 2)       # volumes of 16³: Case("slices", 2.0, (8, 32, 32), (2.0, 0.5, 0.5))

Each test says which axes grow, and what stays as it is: the distance between samples, so that there is more to see (`canvas`,
`longer`), or the whole extent, so that samples are closer (`zoom`, `rate`, `slices`). `slices` has half of the slices first.

Distances are in the units that a model's positions can be given in: seconds between frames; pixels of the training size in height
and width of clips; millimetres between voxels. Images have none. Volumes from files are as far apart as each file says, and near
what a case says: where samples come with a spacing of their own, it takes the place of the case's (`own`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from train.config import Config, Kind, Test
from train.rows import Size
from train.solids import FIELD

SPACE, TIME = (0, 1, 1), (1, 0, 0)  # which axes grow with the ratio
GROWN: dict[Kind, dict[Test, tuple[int, ...]]] = {
    "images": {"zoom": (1, 1), "canvas": (1, 1)},
    "clips": {"longer": TIME, "rate": TIME, "zoom": SPACE, "canvas": SPACE},
    "volumes": {"zoom": (1, 1, 1), "canvas": (1, 1, 1), "slices": SPACE},
}
FARTHER = "canvas", "longer"  # samples stay as far apart as in training
SHAPES = {
    "images": "224, or 320x448 for height and width",
    "clips": "64, 64x96 for height and width, or 16x64x96 with frames",
    "volumes": "32, or 8x32x32 for depth, height and width",
}


@dataclass(frozen=True)
class Case:
    """Inputs of one test: `size` is (height, width), (frames, height, width) or (depth, height, width), `spacing` the true distance
    between samples along these axes, None for images; `ratio` is the size over the training size along the axes that grow."""

    test: Test
    ratio: float
    size: tuple[int, ...]
    spacing: tuple[float, ...] | None = None

    @property
    def inputs(self) -> Case:
        """The same for all cases that have the same inputs."""
        return Case("canvas" if self.test == "canvas" else "zoom", 1.0, self.size, self.spacing)

    @property
    def fps(self) -> float:
        """Clips: frames a second."""
        return 1.0 if self.spacing is None else 1 / self.spacing[0]

    def column(self, kind: Kind) -> Size:
        """The column of this case in tables."""
        depth = None if kind == "images" else self.size[0]
        return Size(self.ratio, self.size[-2], self.size[-1], depth, round(self.fps, 6) if kind == "clips" else None)


def spacing(config: Config) -> tuple[float, ...] | None:
    """The distance between samples in training."""
    if config.kind == "images":
        return None
    if config.kind == "clips":
        return (1 / config.fps, 1.0, 1.0)
    if config.dataset == "solids":
        return tuple(FIELD / n for n in config.size)
    return tuple(map(float, config.spacing * 3))[:3] or (1.0, 1.0, 1.0)


def trained(config: Config) -> Case:
    """What a model is trained on."""
    return Case("zoom", 1.0, config.size, spacing(config))


def case(config: Config, test: Test, ratio: float) -> Case:
    """The inputs of a test at a size over the training size."""
    grows = _grown(config, test)
    first = (config.size[0] // 2,) if test == "slices" else config.size[:1]
    return seen(config, test, tuple(round(n * ratio) if grow else n for n, grow in zip((*first, *config.size[1:]), grows)))


def seen(config: Config, test: Test, size: tuple[int, ...]) -> Case:
    """The inputs of a test at a size. One number is for all axes but time, two are height and width."""
    grows, whole = _grown(config, test), size
    if len(size) == 1:
        whole = size * (3 if config.kind == "volumes" else 2)
    if len(whole) == 2 and config.kind == "clips":
        whole = (config.frames, *whole)
    if len(whole) != len(grows):
        raise ValueError(f"size {'x'.join(map(str, size))}: {config.dataset} are {config.kind}, give {SHAPES[config.kind]}")
    distances = spacing(config)
    if distances is not None and test not in FARTHER:
        distances = tuple(distance * old / new for distance, old, new in zip(distances, config.size, whole))
    axis = 0 if grows == TIME else -2
    return Case(test, whole[axis] / config.size[axis], whole, distances)


def _grown(config: Config, test: Test) -> tuple[int, ...]:
    """Which axes grow, of a test that there is."""
    known = GROWN[config.kind]
    if test not in known:
        raise ValueError(f"test {test!r}: {config.dataset} are {config.kind}, choose from {', '.join(known)}")
    return known[test]


def places(config: Config, case: Case, positions: str) -> dict[str, tuple[float, ...]]:
    """What a model is told of a case beside its inputs: with `positions="units"` the spacing, unless all have that of training."""
    if positions == "index" or case.spacing is None or (case.spacing == spacing(config) and config.dataset != "volumes"):
        return {}
    return {"spacing": case.spacing}


def own(told: dict[str, Any], where: Sequence[Tensor]) -> dict[str, Any]:
    """What a batch is told: where it is told a spacing and its samples have their own, `where` = [`[B, A]`], that."""
    return {**told, "spacing": where[0]} if told and where else told
