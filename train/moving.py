"""Moving glyphs: clips of letters and digits that fly over a plain field, at any pixel size, frame rate and length.

    Moving("train", question="direction", frames=8, size=32)   # clip uint8 [3, 8, 32, 32], label: one of eight ways
    Moving("test", frames=16, fps=16)                          # the same motions in the same second, twice the frame rate
    Moving("test", frames=32)                                  # a longer clip at the same rate: motion goes on
    Moving("test", size=128)                                   # zoom: the same clips with more pixels
    Moving("test", test="canvas", size=64, field=32)           # canvas: the same scale and speed, a larger field of view

The field has no edges: what leaves on one side comes in on the other. The place at the start is uniform, so the place at any time
is uniform whatever the way, and no single frame tells the way: `place(t) = start + speed * t * step`, modulo the picture. Three
questions are asked of such clips,

    direction   which of eight ways (up, then clockwise) the glyph moves; chance is one in eight
    order       one glyph, then for a quarter of the clip nothing, then another: which came first? One class an ordered pair of
                `classes`, so whoever knows which two there are but not their order is right half of the time. Nothing, not even
                a tube of up to a quarter of the clip and one frame more, shows both. Both move, each its own way.
    glyph       which of `classes`; the way tells nothing

Each frame is what is there at the moment `k / fps`, drawn by FreeType from the outline, to 1/64 of a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import permutations
from math import ceil, floor
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from train.glyphs import CLASSES, Glyphs, draw

Question = Literal["direction", "order", "glyph"]
WAYS = ("up", "up right", "right", "down right", "down", "down left", "left", "up left")
STEPS = np.array([(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]) / np.sqrt([[1], [2]] * 4)  # [8, 2]
SIDE = 0.35, 0.5  # larger side of the glyph's box, in fields
SPEED = 0.6, 1.0  # fields a second
FIRST, GAP = (0.25, 0.5), 0.25  # how long the first glyph is seen, and then none, in clips
SMALLEST = 16
KNOWN = {"direction": CLASSES, "order": "AX", "glyph": "0123456789"}  # glyphs that are drawn where none are given


class Moving(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Clips (uint8 [3, T, H, W], label). Clip i is a function of split, question, classes, seed and i, shown at the asked sizes.

    frames   number of frames, at 0, 1/fps, 2/fps, ... seconds; `seconds` holds them
    size     pixels, one number or (height, width)
    test     "zoom": a field is the shorter side, whatever the size; "canvas": a field is `field` pixels
    classes  the glyphs to draw; direction and order draw any way among them. Fonts are those of the split alone.

    `answers` says what each label means, `clusters` the font cluster of each clip, for a bootstrap over fonts.
    """

    def __init__(
        self,
        split: draw.Split,
        *,
        question: Question = "direction",
        frames: int = 8,
        fps: float = 8.0,
        size: int | tuple[int, int] = 32,
        test: Literal["zoom", "canvas"] = "zoom",
        field: int = 32,
        classes: str | None = None,
        length: int = 10_000,
        seed: int = 0,
    ) -> None:
        if question not in get_args(Question):
            raise ValueError(f"question {question!r}: choose one of {', '.join(get_args(Question))}")
        known = KNOWN[question] if classes is None else classes
        self.glyphs = Glyphs(split, test=test, size=size, field=field, classes=known, length=length, seed=seed)
        self.question, self.frames, self.fps, self.size = question, frames, float(fps), self.glyphs.size
        self.field = min(self.size) if test == "zoom" else field  # pixels
        self._check()
        self.pairs = list(permutations(range(len(known)), 2))  # what came first, what came next

    def _check(self) -> None:
        least = 4 if self.question == "order" else 1
        if isinstance(self.frames, bool) or not isinstance(self.frames, int) or self.frames < least:
            raise ValueError(f"frames {self.frames}: a whole number, at least {least} for question {self.question!r}")
        if not 0 < self.fps < float("inf"):
            raise ValueError(f"fps {self.fps}: frames a second, above 0")
        if self.field < SMALLEST:
            raise ValueError(f"a field of {self.field} pixels: at least {SMALLEST} are needed to see a glyph move")
        if self.question == "order" and len(self.glyphs.classes) < 2:
            raise ValueError(f"classes {self.glyphs.classes!r}: order needs two glyphs or more")

    @property
    def seconds(self) -> np.ndarray:
        """When each frame is seen, float64 [T]."""
        return np.arange(self.frames) / self.fps

    @property
    def answers(self) -> tuple[str, ...]:
        """What each label stands for."""
        known = self.glyphs.classes
        pairs = tuple(f"{known[a]} then {known[b]}" for a, b in self.pairs)
        return {"direction": WAYS, "order": pairs, "glyph": tuple(known)}[self.question]

    @cached_property
    def clusters(self) -> Tensor:
        """The font cluster of each clip, int64 [length]; nothing is drawn."""
        return self.glyphs.clusters

    def __len__(self) -> int:
        return self.glyphs.length

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Clips uint8 [B, 3, T, H, W] and labels int64 [B]."""
        samples, streams = self.glyphs.samples(indices), draw.Streams()
        drawn = [self._clip(s, streams.at(*s.key, part=2).random(10)) for s in samples]
        masks = np.stack([mask for mask, _ in drawn])  # [B, T, H, W]
        clips = draw.paint(masks.reshape(len(samples), -1, self.size[1]), samples)  # [B, 3, T * H, W]
        return torch.from_numpy(clips).unflatten(2, (self.frames, -1)), torch.tensor([label for _, label in drawn])

    def _clip(self, s: draw.Sample, u: np.ndarray) -> tuple[np.ndarray, int]:
        """Masks [T, H, W] and the label, from ten uniforms: two flights of (start y x, way, speed), pair, time of change."""
        whole, now = np.ones(self.frames, bool), np.arange(self.frames)
        if self.question != "order":
            label = int(u[2] * 8) if self.question == "direction" else s.label
            return self._fly([(s.char, u[:4], whole)], s), label
        label = int(u[8] * len(self.pairs))
        change = draw.between(float(u[9]), *FIRST) * self.frames
        first, second = (self.glyphs.classes[i] for i in self.pairs[label])
        return self._fly([(first, u[:4], now < change), (second, u[4:8], now >= change + GAP * self.frames)], s), label

    def _fly(self, flights: list[tuple[str, np.ndarray, np.ndarray]], s: draw.Sample) -> np.ndarray:
        """Masks [T, H, W] of glyphs (character, start y x way speed [4], which frames show it [T])."""
        masks = np.zeros((self.frames, *self.size), np.uint8)
        side = draw.between(float(s.dice[0]), *SIDE) * self.field
        for char, u, shown in flights:
            speed = draw.between(float(u[3]), *SPEED) * self.field  # pixels a second
            places = u[:2] * self.size + self.seconds[:, None] * (speed * STEPS[int(u[2] * 8)])  # [T, 2]
            for frame in np.flatnonzero(shown):
                stamp(masks[frame], s.font, char, side, *(places[frame] % self.size))
        return masks

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        clips, labels = self.batch([index])
        return clips[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        clips, labels = self.batch(indices)
        return list(zip(clips, labels.tolist()))


def stamp(mask: np.ndarray, font: draw.Font, char: str, side: float, top: float, left: float) -> None:
    """Put a glyph, its box at (top, left), on an empty mask [H, W] whose opposite edges are one."""
    (h, w), (row, column) = draw.span(font, char, side), (floor(top), floor(left))
    shape = ceil(h) + 4, ceil(w) + 4  # two pixels around, for what FreeType draws over the box
    drawn = draw.glyph(font, char, side, 2 + top - row, 2 + left - column, shape)
    rows, columns = ((start - 2 + np.arange(n)) % whole for start, n, whole in zip((row, column), shape, mask.shape))
    mask[np.ix_(rows, columns)] = drawn
