"""Image generators (diffusion transformers), most with more axes than an image has: axial, interleaved, token indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..rope import RoPE
from ._preset import preset


def shares(head_dim: int, widths: Sequence[int]) -> tuple[int, ...]:
    """Pairs of each axis, from the channels `widths` that a published model gives it, at any head width in proportion.

    Raises ValueError where the proportion does not come out whole, naming a width that works.
    """
    total, pairs = sum(widths), head_dim // 2
    if any(width * pairs % total for width in widths):
        told = f"head_dim={head_dim} cannot be shared among the axes as {tuple(widths)} of {total}"
        raise ValueError(f"{told}: give {total}, or split=(pairs an axis)")
    return tuple(width * pairs // total for width in widths)


def by_widths(head_dim: int, widths: Sequence[int], theta: float, options: dict[str, Any]) -> RoPE:
    """Axial, the axes' shares of the head as `widths`, unless `options` have a `split`."""
    split = options.pop("split", None) or shares(head_dim, widths)
    return RoPE(head_dim, len(widths), theta=theta, split=split, **options)


@preset(axes=3, paper="FLUX.1 (Black Forest Labs 2024)", used_by="FLUX.1, Chroma, Ovis-Image, LongCat-Image, Bria")
def flux(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axes (index of the image, h, w) with 16, 56, 56 of 128 channels, w = 10000^(-i / F_a).

    Tokens of the image have (0, h, w): `rope.at(1, h, w)`; a further image counts up the first axis; text tokens are at the origin.
    """
    return by_widths(head_dim, (16, 56, 56), theta, options)


@preset(axes=4, paper="FLUX.2 (Black Forest Labs 2025)", used_by="FLUX.2; FLUX.3 with theta=10000")
def flux2(head_dim: int, *, theta: float = 2000.0, **options: Any) -> RoPE:
    """Axes (t, h, w, l) with a quarter of the channels each, w = 2000^(-i / F): images on the first three, text along the last.

    Tokens of the image have (0, h, w, 0): `rope.at(1, h, w, 1)`; reference images differ in t.
    """
    return by_widths(head_dim, (32, 32, 32, 32), theta, options)


@preset(axes=3, paper="Z-Image (Z-Image Team 2025)", used_by="Z-Image; Krea 2 with theta=1000")
def z_image(head_dim: int, *, theta: float = 256.0, caption: float = 0, **options: Any) -> RoPE:
    """Axes (l, h, w) with 32, 48, 48 of 128 channels, w = 256^(-i / F_a).

    Text is at (l, 0, 0), l = 1, 2, ..; the image at (`caption` + 1, h, w), with the padded length of the text in tokens.
    """
    return by_widths(head_dim, (32, 48, 48), theta, {"coordinates": {"offset": (caption + 1, 0, 0)}, **options})


@preset(axes=2, paper="HunyuanImage 2.1 (Tencent 2025)", used_by="HunyuanImage 2.1")
def hunyuan_image(head_dim: int, *, theta: float = 256.0, **options: Any) -> RoPE:
    """Axes (h, w) with half of the channels each, rows first, w = 256^(-i / F); text is not turned."""
    return RoPE(head_dim, 2, theta=theta, **options)
