"""Text beside images and video: axes (t, h, w). A word has the same number on every axis, if nothing else is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..freqs import magnitudes
from ..positions import Mode, grid
from ..rope import RoPE
from ._preset import preset
from .generators import by_widths

Part = int | Sequence[int]  # so many text tokens, or a vision grid (t, h, w)


def dealt(axis_of: Sequence[int], theta: float) -> Tensor:
    """One spectrum whose p-th pair looks along the axis given for it: w_p = theta^(-p/P) e_axis(p) -> `[P, 3]`."""
    axes = torch.eye(3, dtype=torch.float64, device="cpu")[list(axis_of)]  # [P, 3]
    return axes * magnitudes(len(axis_of), theta=theta)[:, None]


@preset(axes=3, paper="Qwen2-VL, M-RoPE (Wang 2024)", used_by="Qwen2-VL, Qwen2.5-VL")
def mrope_chunked(head_dim: int, *, theta: float = 1e6, sections: tuple[int, int, int] | None = None, **options: Any) -> RoPE:
    """One spectrum cut in chunks: the fastest pairs for t, the next for h, the slowest for w; half layout; `mrope_positions`.

    `sections`: pairs of t, h, w, (16, 24, 24) of 64, in that proportion for other widths. For text, where all axes are equal,
    this is plain RoPE of one axis.
    """
    pairs = head_dim // 2
    counts = _check(sections, pairs) if sections else (pairs - 2 * (3 * pairs // 8), 3 * pairs // 8, 3 * pairs // 8)
    axis_of = [axis for axis, count in enumerate(counts) for _ in range(count)]
    return RoPE(head_dim, 3, dealt(axis_of, theta), **{"layout": "half", **options})


@preset(axes=3, paper="Qwen3-VL, interleaved M-RoPE (Bai 2025)", used_by="Qwen3-VL, Ideogram 4")
def mrope_interleaved(head_dim: int, *, theta: float = 5e6, sections: tuple[int, int, int] | None = None, **options: Any) -> RoPE:
    """One spectrum dealt in turn: pair p is of h if p mod 3 = 1 and p < 3 n_h, of w if p mod 3 = 2 and p < 3 n_w, else of t.

    `sections`: pairs of t, h, w, (24, 20, 20) of 64, in that proportion for other widths; the slowest are left to t. Half
    layout; positions of text and images as `mrope_positions` makes them.
    """
    pairs = head_dim // 2
    _, high, wide = _check(sections, pairs) if sections else (0, 5 * pairs // 16, 5 * pairs // 16)
    if 3 * max(high, wide) > pairs + 2:
        raise ValueError(f"sections={sections!r}: h and w have every third of {pairs} pairs, {pairs // 3} each at the most")
    axis_of = [p % 3 if (p % 3 == 1 and p < 3 * high) or (p % 3 == 2 and p < 3 * wide) else 0 for p in range(pairs)]
    return RoPE(head_dim, 3, dealt(axis_of, theta), **{"layout": "half", **options})


@preset(axes=3, paper="VideoRoPE (Wei 2025)", used_by="VideoRoPE (a tuned Qwen2-VL)")
def videorope(head_dim: int, *, theta: float = 1e6, temporal: int | None = None, **options: Any) -> RoPE:
    """One spectrum with the slowest pairs for t, so that no frame looks like a later one; h and w share the faster in turn.

    `temporal`: pairs of t, 16 of 64, a quarter for other widths. Half layout; `videorope_positions`. Written from the paper's
    description, not compared with its authors' model.
    """
    pairs = head_dim // 2
    last = pairs // 4 if temporal is None else temporal
    if not 0 <= last <= pairs:
        raise ValueError(f"temporal={temporal!r}: give from 0 to {pairs} pairs")
    axis_of = [1 + p % 2 if p < pairs - last else 0 for p in range(pairs)]
    return RoPE(head_dim, 3, dealt(axis_of, theta), **{"layout": "half", **options})


@preset(axes=3, paper="Qwen-Image, MSRoPE (Wu 2025)", used_by="Qwen-Image, Qwen-Image-Edit")
def qwen_image(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial, 16, 56 and 56 of 128 channels, pairs (2i, 2i + 1); h and w are whole numbers around zero.

    x = i - ceil(N / 2) for h and w, the frame's index for t. Text: see `qwen_image_positions`.
    """
    coordinates = {"normalize": ("index", "signed", "signed")}
    return by_widths(head_dim, (16, 56, 56), theta, {"coordinates": coordinates, **options})


@preset(axes=3, paper="Lumina-Image 2.0 (Qin 2025)", used_by="Lumina-Image 2.0")
def lumina2(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial in thirds, pairs (2i, 2i + 1); the first axis counts the caption's words: `lumina2_positions`."""
    return by_widths(head_dim, (32, 32, 32), theta, options)


def mrope_positions(parts: Sequence[Part], *, interval: float = 1.0) -> Tensor:
    """Positions `[N, 3]` of a sequence of text and vision, as Qwen2-VL lays them out.

        mrope_positions([5, (1, 8, 12), 3])      # five words, an image of 8 x 12 tokens, three words

    Text has the same number on every axis and goes up by one. A vision grid begins at the next number on every axis, one frame
    `interval` further than the last (Qwen2.5-VL: tokens a second times seconds a frame). What follows goes on at the largest
    number so far, rounded down, plus one.
    """

    def vision(extent: Sequence[int]) -> tuple[Tensor, float]:
        points = grid(*extent, spacing=(interval, 1.0, 1.0))  # [T H W, 3]
        return points, math.floor(float(points.amax())) + 1

    return _laid(parts, vision)


def videorope_positions(parts: Sequence[Part], *, stride: float = 2.0) -> Tensor:
    """Positions `[N, 3]` of VideoRoPE's diagonal layout (Wei 2025, sec. 4): frames on the line of the text, centred on it.

    Frame f, row i, column j of a grid that begins at s: t = s + stride f, h = t + i - H / 2, w = t + j - W / 2. What follows goes
    on at s + stride T. (The authors' code centres by floor((H - 1) / 2) and goes on right after the last frame.)
    """

    def vision(extent: Sequence[int]) -> tuple[Tensor, float]:
        frames, height, width = extent
        points = grid(frames, height, width, spacing=(stride, 1.0, 1.0), offset=(0.0, -height / 2, -width / 2))
        return points + points[:, :1] * points.new_tensor((0.0, 1.0, 1.0)), stride * frames

    return _laid(parts, vision)


def qwen_image_positions(extents: Sequence[Sequence[int]], *, text: int) -> tuple[Tensor, Tensor]:
    """Positions of Qwen-Image's two streams, image tokens `[N, 3]` and text tokens `[text, 3]`.

    The k-th of the images (f, h, w) has frames from k on; rows and columns are counted around zero. Text is on the diagonal
    from max(h // 2, w // 2) on, the largest over all images.
    """
    around: tuple[Mode, ...] = ("index", "signed", "signed")
    images = [grid(*extent, offset=(float(k), 0.0, 0.0), normalize=around) for k, extent in enumerate(extents)]
    first = max(max(extent[1:]) // 2 for extent in extents)
    return torch.cat(images), _diagonal(text) + first


def lumina2_positions(caption: int, height: int, width: int) -> Tensor:
    """`[caption + N, 3]`: word i is at (i, 0, 0), the image's token of row i and column j at (caption, i, j)."""
    words = _diagonal(caption) * torch.tensor((1.0, 0.0, 0.0))
    return torch.cat((words, grid(1, height, width, offset=(float(caption), 0.0, 0.0))))


def _diagonal(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32)[:, None].expand(-1, 3)  # [count, 3]


def _laid(parts: Sequence[Part], vision: Callable[[Sequence[int]], tuple[Tensor, float]]) -> Tensor:
    """Parts one after another; `vision` gives the points of a grid that begins at zero and how far on what follows begins."""
    found, start = [], 0.0
    for part in parts:
        if not isinstance(part, int) and len(part) != 3:
            raise ValueError(f"{part!r} in a sequence: give a number of text tokens, or a vision grid (t, h, w)")
        points, length = (_diagonal(part), float(part)) if isinstance(part, int) else vision(part)
        found.append(points + start)
        start += length
    if not found:
        raise ValueError("an empty sequence: give at least one part, a number of text tokens or a vision grid (t, h, w)")
    return torch.cat(found)


def _check(sections: Sequence[int], pairs: int) -> Sequence[int]:
    if len(sections) != 3 or sum(sections) != pairs:
        raise ValueError(f"sections={sections!r}: give the pairs of t, h and w, whose sum is {pairs}")
    return sections
