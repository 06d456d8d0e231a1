"""Sliding windows over a pyramid: a classifier of inputs of one size reads inputs of any size, and of objects of any size in them.

    model = Pyramid(model, (32, 32), rest=47)  # its last class says "nothing whole is here"
    model(images)  # [B, C, H, W], any size -> log-probabilities [B, classes]

The input is shrunk by `step` again and again until one window of the trained size holds it, and at every scale the model sees every
window, `stride` samples apart. Each window is what the model was trained on: no position is new to it, however large the input, and
nothing dilutes its attention or its mean over tokens. What is left to do is to say which window to believe. An input that shows an
object in a large field and one that shows it large are read alike.

A model that was trained only on whole objects is sure of parts, too. Give it pictures of parts, of fields without an object, and
of objects too small to read, as one more class, and tell that class as `rest`. If one window w of all holds the object, of class
c, and the others hold none, the input has probability p_w(c) Π p_v(rest) over v ≠ w, so the odds p_w(c) / p_w(rest) compare windows
and classes, and the largest answer. `floor` is added to p_w(rest): what a model calls less likely than that it has not seen often
enough to know. Without `rest` the surest window answers.

Sliding windows over a pyramid are as old as detection (Rowley 1998, Viola 2001), reading a bag of windows by its members is
multiple-instance learning (Dietterich 1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf, prod

import torch
from torch import Tensor, nn

from ._check import check_extent, choose
from .learned import wide_weights

READINGS = {"whole": "whole", "windows": "native", "pyramid": "all"}  # names of rules, and their `scales`


class Pyramid(nn.Module):
    """`Pyramid(model, size)(x)`: inputs `[B, C, *extent]` -> log-probabilities `[B, K]`; see the module.

    - `model`: inputs `[B, C, *size]` -> logits; at exactly this size it alone is asked.
    - `size`: of its training inputs, along each axis, in samples (pixels, frames, voxels).
    - `stride`: samples between windows; a quarter of the size.
    - `step`: from one scale to the next; inf: the input as it is and the smallest that a window holds.
    - `scales`: "all", "native" (the input as it is), or "whole" (the smallest alone).
    - `keep`: axes that are not shrunk, by number: time, where a frame rate is given.
    - `rest`: the class that stands for nothing, left out of the answer; `floor`: the least probability of it that is told apart.
    - `batch`: windows at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        size: Sequence[int],
        *,
        stride: int | Sequence[int] | None = None,
        step: float = 2**0.5,
        scales: str = "all",
        keep: Sequence[int] = (),
        rest: int | None = None,
        floor: float = 0.1,
        batch: int = 256,
    ) -> None:
        super().__init__()
        self.model, self.size = model, check_extent(tuple(size), "size")
        each = [max(1, n // 4) for n in self.size] if stride is None else stride
        self.stride = check_extent(tuple(each) if isinstance(each, Sequence) else (each,) * len(self.size), "stride")
        if len(self.stride) != len(self.size):
            raise ValueError(f"stride {self.stride}: give one number, or {len(self.size)}, one an axis of size {self.size}")
        if not step > 1:
            raise ValueError(f"step {step}: inputs shrink by it, so it must be above 1, 2 ** 0.5 for instance")
        if outside := [axis for axis in keep if axis not in range(len(self.size))]:
            raise ValueError(f"keep {tuple(keep)}: there are axes 0 to {len(self.size) - 1}, no {outside[0]}")
        if not 0 <= floor < 1:
            raise ValueError(f"floor {floor}: a probability that is added to that of the rest, from 0 to less than 1")
        self.step, self.floor, self.scales = step, floor, choose("scales", scales, READINGS.values())
        self.keep, self.rest, self.batch = tuple(keep), rest, check_extent((batch,), "batch")[0]

    def forward(self, x: Tensor) -> Tensor:
        found = torch.cat([self.read(shown) for shown in self.shown(x)], dim=1)  # [B, W, K]
        return found.amax(1).log_softmax(-1)

    def shown(self, x: Tensor) -> Iterator[Tensor]:
        """The input at each scale, the largest first."""
        extents = self.extents(tuple(x.shape[2:]))
        yield from (resized(x, extent) for extent in extents)

    def extents(self, extent: Sequence[int]) -> list[tuple[int, ...]]:
        """The sizes at which an input of this extent is seen, the largest first; no axis is below the window's."""
        if len(extent) != len(self.size):
            raise ValueError(f"input of extent {tuple(extent)}: a window of {self.size} wants {len(self.size)} axes after [B, C]")
        free = [a for a in range(len(extent)) if a not in self.keep]
        most = max(1.0, min((extent[a] / self.size[a] for a in free), default=1.0))  # how far the input may shrink
        ratios = [1.0]
        while not isinf(self.step) and ratios[-1] * self.step < most * (1 - 1e-6):
            ratios.append(ratios[-1] * self.step)
        ratios = {"native": [1.0], "whole": [most]}.get(self.scales, [*ratios, most])
        shrunk = [tuple(n if a in self.keep else round(n / r) for a, n in enumerate(extent)) for r in ratios]
        return list(dict.fromkeys(tuple(map(max, found, self.size)) for found in shrunk))

    def read(self, x: Tensor) -> Tensor:
        """What every window at one scale says, row by row: `[B, W, K]`, log-probabilities, or log-odds against the rest."""
        seen = windows(x, self.size, self.stride)  # [B, W, C, *size]
        logits = torch.cat([self.model(part) for part in seen.flatten(0, 1).split(self.batch)])
        found = logits.log_softmax(-1).unflatten(0, seen.shape[:2])
        if self.rest is None:
            return found
        answers = self._answers(found.shape[-1], found.device)
        return found.index_select(-1, answers) - (found[..., self.rest, None].exp() + self.floor).log()

    def _answers(self, classes: int, device: torch.device) -> Tensor:
        rest = self.rest or 0
        if not -classes <= rest < classes:
            raise ValueError(f"rest {rest}: the model has classes 0 to {classes - 1}")
        return torch.tensor([c for c in range(classes) if c != rest % classes], device=device)

    @torch.no_grad()
    def place(self, x: Tensor) -> Tensor:
        """Where the surest window lies, in samples of the input: `[B, axes, 2]`, start and end."""
        best, boxes = [], []
        for shown in self.shown(x):
            best.append(self.read(shown).amax(-1))  # [B, W]
            corners = torch.cartesian_prod(
                *(torch.tensor(starts(n, w, s)) for n, w, s in zip(shown.shape[2:], self.size, self.stride))
            )
            corners = corners.reshape(-1, len(self.size))  # [W, axes]
            ratio = torch.tensor(x.shape[2:]) / torch.tensor(shown.shape[2:])
            boxes.append(torch.stack((corners * ratio, (corners + torch.tensor(self.size)) * ratio), dim=-1))
        found: Tensor = torch.cat(boxes)[torch.cat(best, 1).argmax(1).cpu()]
        return found


def starts(extent: int, window: int, stride: int) -> list[int]:
    """Where windows start along an axis: `stride` apart, and one at the end."""
    return [*range(0, extent - window, stride), extent - window]


def windows(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """`[B, C, *extent]` -> all windows `[B, W, C, *size]`, row by row."""
    x = x[:, None]  # [B, 1, C, *extent]
    for axis, (window, step) in enumerate(zip(size, stride), start=3):
        at = torch.tensor(starts(x.shape[axis], window, step))[:, None] + torch.arange(window)  # [w, size]
        x = x.index_select(axis, at.flatten().to(x.device)).unflatten(axis, at.shape).movedim(axis, 2).flatten(1, 2)
    return x


def resized(x: Tensor, extent: Sequence[int]) -> Tensor:
    """`[B, C, *old]` -> `[B, C, *extent]`, axis by axis: Keys' cubic (a = -0.5), as wide as a sample where there are fewer."""
    for axis, new in enumerate(extent, start=2):
        old = x.shape[axis]
        if new != old:
            step = torch.tensor(old / new, dtype=torch.float64)
            at = (torch.arange(new, dtype=torch.float64) + 0.5) * step - 0.5
            weight = wide_weights(at, step, old, "cubic").to(x)  # [new, old]
            x = (x.movedim(axis, -1) @ weight.T).movedim(-1, axis)
    return x


def count(pyramid: Pyramid, extent: Sequence[int]) -> int:
    """How many windows an input of this extent has."""
    each = (zip(found, pyramid.size, pyramid.stride) for found in pyramid.extents(extent))
    return sum(prod(len(starts(n, w, s)) for n, w, s in axes) for axes in each)
