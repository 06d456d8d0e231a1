"""Glyphs: 47 letters and digits in hundreds of free fonts, at any resolution, split by font family.

Glyphs("train", size=32, augment=True)               # zoom with scale augmentation: what to train on
Glyphs("test", size=128)                             # zoom: the same pictures with more pixels
Glyphs("test", test="canvas", size=128, field=32)    # canvas: the same scale, a larger field of view
Glyphs("test", test="canvas", size=128, crop=True)   # the true crop of exactly those canvases
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, cast

import torch

from train.glyphs import draw
from train.glyphs.draw import CLASSES, Split

__all__ = ["CLASSES", "Glyphs"]
SMALLEST = 8


class Glyphs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Pictures (uint8 [3, H, W], label). Picture i is a function of split, classes, seed and i: not of order, workers or `length`.

    test     "zoom": the glyph fills 0.7 to 0.9 of the shorter side, whatever the size. "canvas": its larger side is 0.75 `field`
             pixels, anywhere on the canvas, among strokes of one density per area.
    size     pixels, one number or (height, width). Two sizes show the same glyph, font and colours.
    augment  zoom alone: a random square window, 0.08 to 1 of the field's area, drawn larger.
    crop     canvas alone: a window of field by field pixels of the same canvas that contains the glyph.

    `clusters` holds the font cluster of each picture, for a bootstrap over fonts; fonts are drawn cluster first.
    """

    def __init__(
        self,
        split: Split,
        *,
        test: Literal["zoom", "canvas"] = "zoom",
        size: int | tuple[int, int] = 32,
        field: int = 32,
        classes: str = CLASSES,
        length: int = 10_000,
        seed: int = 0,
        augment: bool = False,
        crop: bool = False,
    ):
        self.split, self.test, self.field, self.classes = split, test, field, classes
        self.length, self.seed, self.augment, self.crop = length, seed, augment, crop
        self.size = cast(tuple[int, int], tuple(size) if isinstance(size, Sequence) else (size, size))
        self._check()

    def _check(self) -> None:
        if self.split not in draw.SPLITS:
            raise ValueError(f"split {self.split!r}: choose one of {', '.join(draw.SPLITS)}")
        if self.test not in ("zoom", "canvas"):
            raise ValueError(f"test {self.test!r}: choose zoom or canvas")
        if len(self.size) != 2 or not all(isinstance(n, int) and n >= SMALLEST for n in self.size):
            raise ValueError(f"size {self.size}: give one whole number of pixels or (height, width), each at least {SMALLEST}")
        if self.field < SMALLEST:
            raise ValueError(f"field {self.field}: at least {SMALLEST} pixels are needed to tell letters apart")
        if self.test == "canvas" and min(self.size) < self.field:
            raise ValueError(f"size {self.size} is smaller than field {self.field}: a canvas holds at least one field")
        if self.test == "canvas" and self.augment:
            raise ValueError("augment=True changes the scale, which a canvas keeps: use test='zoom'")
        if self.test == "zoom" and self.crop:
            raise ValueError("crop=True is the true crop of a canvas: use test='canvas'")
        if unknown := sorted(set(self.classes) - set(CLASSES)):
            raise ValueError(f"classes {''.join(unknown)!r} are not drawn: choose from {CLASSES!r}")
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes {self.classes!r}: give at least one, and each once")
        if self.length < 1:
            raise ValueError(f"length {self.length}: at least 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed}: a whole number from 0 to 2**63 - 1")

    def __len__(self) -> int:
        return self.length

    def samples(self, indices: Sequence[int]) -> list[draw.Sample]:
        for i in indices:
            if not 0 <= i < self.length:
                raise IndexError(f"picture {i} of {self.length}")
        return draw.samples(self.seed, self.split, indices, self.classes)

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures uint8 [B, 3, H, W] and labels int64 [B]."""
        samples = self.samples(indices)
        if self.test == "zoom":
            masks = draw.zoom(samples, self.size, self.augment)  # [B, H, W]
        else:
            masks = draw.canvas(samples, self.size, self.field, self.crop)
        return torch.from_numpy(draw.paint(masks, samples)), torch.tensor([s.label for s in samples])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pictures, labels = self.batch([index])
        return pictures[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, int]]:
        pictures, labels = self.batch(indices)
        return list(zip(pictures, labels.tolist()))

    @cached_property
    def clusters(self) -> torch.Tensor:
        """The font cluster of each picture, int64 [length]; nothing is drawn."""
        fonts = draw.choose(draw.rolls(self.seed, self.split, range(self.length), 2), self.split)
        return torch.tensor([font.cluster for font in fonts])
