"""Arrows: follow the green arrow to the first arrow in its direction, and say where that one points.

The synthetic task of the LieRE paper (Ostmeier 2025), rebuilt from its description, for its code is not public here: a picture of
cells of 12 x 12 pixels holds eight arrows, one of them green; 108 pixels are 9 x 9 cells, 168 are 14 x 14, 276 are 23 x 23. What
an arrow looks like is the same everywhere, so a larger picture is a larger field, and rays are longer. Nothing but the places of
two cells relative to each other tells the answer; chance is one in four.

    Arrows("train", size=108)[0]         # picture uint8 [3, 108, 108], label 0 to 3: up, right, down, left
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

CELL, COUNT, CHUNK = 12, 8, 4096
SPLITS = "train", "val", "test"
STEPS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # up, right, down, left
COLOURS = (40, 40, 40), (0, 170, 0)  # the others, and the one to start from


class Arrows(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pictures (uint8 [3, H, W], label). Picture i is a function of split, size, seed and i alone."""

    def __init__(self, split: str, *, size: int | tuple[int, int] = 108, length: int = 10_000, seed: int = 0) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
        if len(self.size) != 2 or any(n % CELL or n < 4 * CELL for n in self.size):
            raise ValueError(
                f"size {self.size}: arrows fill cells of {CELL} pixels, so give multiples of {CELL}, at least {4 * CELL}"
            )
        if length < 1:
            raise ValueError(f"length {length}: at least 1")
        field, key = (self.size[0] // CELL, self.size[1] // CELL), (seed, SPLITS.index(split), *self.size)
        chunks = [place(np.random.default_rng((*key, start)), field, CHUNK) for start in range(0, length, CHUNK)]
        self.cells, self.labels = (torch.from_numpy(np.concatenate(part)[:length]) for part in zip(*chunks))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pictures, labels = self.__getitems__([index])
        return pictures[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(indices)
        painted = stamps()[self.cells[at].long()]  # [B, h, w, 3, CELL, CELL]
        return painted.permute(0, 3, 1, 4, 2, 5).reshape(len(at), 3, *self.size), self.labels[at]


def place(random: np.random.Generator, field: tuple[int, int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells uint8 [count, h, w] (0 empty, 1 + way an arrow, 5 + way the green one) and labels [count], each way as likely."""
    rows = np.arange(count)
    way, label = random.integers(4, size=count), random.integers(4, size=count)
    step, sides = STEPS[way], np.array(field)  # [count, 2], [2]
    reach = 1 + (random.random(count) * (np.abs(step) @ (sides - 1))).astype(int)  # cells from the green arrow to the next
    low = np.maximum(0, -step * reach[:, None])  # where the green one may stand for the next to be inside
    high = sides - np.maximum(0, step * reach[:, None])
    start = low + (random.random((count, 2)) * (high - low)).astype(int)  # [count, 2]
    taken = np.zeros((count, *field), bool)
    for k in range(max(field)):  # nothing may stand on the way
        on = rows[k <= reach]
        taken[(on, *(start[on] + k * step[on]).T)] = True
    free = np.where(taken, 2, random.random(taken.shape)).reshape(count, -1).argsort(1)[:, : COUNT - 2]
    cells = np.zeros((count, field[0] * field[1]), np.uint8)
    cells[rows[:, None], free] = 1 + random.integers(4, size=free.shape)
    cells = cells.reshape(count, *field)
    end = start + reach[:, None] * step
    cells[(rows, *start.T)], cells[(rows, *end.T)] = 5 + way, 1 + label
    return cells, label


@lru_cache(maxsize=1)
def stamps() -> Tensor:
    """What each kind of cell looks like, uint8 `[9, 3, CELL, CELL]`."""
    up = [(6, 1), (10.5, 6), (7.5, 6), (7.5, 11), (4.5, 11), (4.5, 6), (1.5, 6)]
    drawn = [Image.new("RGB", (CELL, CELL), "white")]
    for colour in COLOURS:
        large = Image.new("RGB", (8 * CELL, 8 * CELL), "white")
        ImageDraw.Draw(large).polygon([(8 * x, 8 * y) for x, y in up], fill=colour)
        small = large.resize((CELL, CELL), Image.Resampling.BOX)
        drawn += [small.rotate(-90 * way) for way in range(4)]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in drawn])).permute(0, 3, 1, 2).contiguous()
