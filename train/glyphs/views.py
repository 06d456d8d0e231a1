"""Pictures of one size that show a whole glyph, or none whole: what a model must have seen that is to say where nothing is.

A `Views` has as many classes as glyphs and one more, the last, `rest`: strokes alone, a glyph too small to read, or a part of
one. A whole glyph is anywhere and its larger side is 0.4 to 0.95 of the picture, most often as the tests have it: 0.7 to 0.9
without strokes (zoom), 0.75 among strokes (canvas); strokes keep their size beside the glyph. Of a part, less than `WHOLE` of the
glyph's box is inside the picture; it is a piece of a glyph of that size, or of one up to six times as large as the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
import torch

from train.glyphs import draw
from train.glyphs.draw import CANVAS_SIDE, CLASSES, ZOOM_SIDE, Sample, Split, between

LEGIBLE, LARGE, LARGEST = 0.4, 0.95, 6.0  # larger sides of glyphs, in pictures
WHOLE, HALF = 0.9, 0.45  # shares of a glyph's box: less is a part; parts of at least half are shown more often
ALONE, SMALL = 0.08, 0.16  # shares of `rest` that are strokes alone, and after them glyphs too small
PART = 3  # the part of a sample's random stream that says what is shown of it


@dataclass(frozen=True)
class View:
    """What is shown of a sample, in pictures: the larger side of its box (0: no glyph) and its corner.

    `field`: the pixels that strokes are drawn for as if it were the canvas's field (0: no strokes).
    """

    whole: bool
    side: float
    top: float
    left: float
    field: int


def whole(sample: Sample, dice: np.random.Generator, size: int) -> View:
    """A whole glyph."""
    among, usual = dice.random() < 0.5, dice.random() < 0.65
    if among:
        side = CANVAS_SIDE if usual else spread(dice.random(), LEGIBLE, CANVAS_SIDE)
    else:
        side = between(dice.random(), *ZOOM_SIDE) if usual else spread(dice.random(), LEGIBLE, LARGE)
    h, w = draw.span(sample.font, sample.char, side)
    return View(True, side, dice.random() * (1 - h), dice.random() * (1 - w), strokes(side, size) if among else 0)


def part(sample: Sample, dice: np.random.Generator, size: int) -> View:
    """No whole glyph: strokes alone or nothing, one too small to read, or a part of one."""
    among, kind = dice.random() < 0.5, dice.random()
    if kind < ALONE:
        return View(False, 0.0, 0.0, 0.0, size if among else 0)
    if kind < SMALL:
        side = spread(dice.random(), LEGIBLE / 6, LEGIBLE / 2)
        top, left = (dice.random() - side / 2 for _ in range(2))
        return View(False, side, top, left, strokes(side, size) if among else 0)
    often, large = dice.random() < 0.6, not among and dice.random() < 0.6
    while True:
        side = spread(dice.random() * dice.random(), LARGE, LARGEST) if large else usual_side(dice, among)
        h, w = draw.span(sample.font, sample.char, side)
        top, left = between(dice.random(), -h, 1.0), between(dice.random(), -w, 1.0)
        seen = inside(top, h) * inside(left, w)
        if seen < WHOLE and (seen > HALF or not often or side > 1.3):
            return View(False, side, top, left, strokes(side, size) if among else 0)


def usual_side(dice: np.random.Generator, among: bool) -> float:
    return CANVAS_SIDE if among and dice.random() < 0.7 else between(dice.random(), LEGIBLE, LARGE)


def spread(u: float, low: float, high: float) -> float:
    """Evenly on a logarithmic scale."""
    return exp(between(u, log(low), log(high)))


def inside(start: float, extent: float) -> float:
    """The share of an interval that lies between 0 and 1."""
    return max(0.0, min(1.0, start + extent) - max(0.0, start)) / extent


def strokes(side: float, size: int) -> int:
    """The field of strokes beside a glyph of this side, which on a canvas is `CANVAS_SIDE` of it; in whole pixels."""
    return max(2, round(min(side, CANVAS_SIDE) / CANVAS_SIDE * size))


class Views(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Pictures (uint8 [3, S, S], label); picture i is a function of split, classes, seed and i.

    `rest`: the share of pictures without a whole glyph.
    """

    def __init__(
        self, split: Split, *, size: int = 32, rest: float = 0.42, classes: str = CLASSES, length: int = 10_000, seed: int = 0
    ) -> None:
        if not 0 <= rest < 1:
            raise ValueError(f"rest {rest}: the share of pictures without a whole glyph, from 0 to less than 1")
        self.split, self.size, self.rest, self.classes, self.length, self.seed = split, size, rest, classes, length, seed

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures uint8 [B, 3, S, S] and labels int64 [B], of which `len(classes)` is the rest."""
        samples = draw.samples(self.seed, self.split, indices, self.classes)
        shown = [self._shown(sample) for sample in samples]
        masks = np.stack([self._glyph(s, view) for s, view in zip(samples, shown)])
        for field in sorted({view.field for view in shown if view.field}):
            at = [i for i, view in enumerate(shown) if view.field == field]
            some = masks[at]
            draw.draw_strokes(some, *draw.strokes([samples[i] for i in at], (self.size, self.size), field))
            masks[at] = some
        labels = torch.tensor([s.label if view.whole else len(self.classes) for s, view in zip(samples, shown)])
        return torch.from_numpy(draw.paint(masks, samples)), labels

    def _shown(self, sample: Sample) -> View:
        dice = draw.Streams().at(*sample.key, part=PART)
        return whole(sample, dice, self.size) if dice.random() >= self.rest else part(sample, dice, self.size)

    def _glyph(self, sample: Sample, view: View) -> np.ndarray:
        size = (self.size, self.size)
        if not view.side:
            return np.zeros(size, np.uint8)
        return draw.glyph(sample.font, sample.char, view.side * self.size, view.top * self.size, view.left * self.size, size)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pictures, labels = self.batch([index])
        return pictures[0], int(labels[0])
