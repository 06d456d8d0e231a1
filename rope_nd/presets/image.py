"""Image encoders: two axes (h, w).

Each states its frequencies, the order of its pairs, its layout and its coordinates. Pairs of an axis are "rows" (h) or "columns"
(w); where an origin orders pairs (x, y), the columns' pairs come first here, and positions stay (h, w). F = P / 2 pairs an axis.
Coordinates of `rope.at(h, w)` are token indices unless told otherwise; `rope(positions)` takes any.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from .._check import choose
from ..freqs import axial, magnitudes, mixed
from ..rope import RoPE
from ._preset import preset

DINOV3_AUGMENT = {"rescale": 2.0}
"""What DINOv3 draws in training: one factor in [1/2, 2], log-uniform, for both axes; its shift and jitter are off in all
published configurations. `wrap(model, "dinov3", augment=DINOV3_AUGMENT)`; in a loop of one's own, `positions.augment`."""


def columns_first(head_dim: int, theta: float) -> Tensor:
    """Axial wave vectors `[1, P, 2]` theta^(-i / F), the pairs of columns before those of rows."""
    return axial(head_dim // 2, 2, theta=theta).flip(-1)


def _dealt(size: Tensor, axis: Tensor) -> Tensor:
    """Wave vectors `[P, 2]` of frequencies `[P]`, each along the axis that is named, `[P]` of 0 and 1."""
    return size[:, None] * torch.stack((axis == 0, axis == 1), dim=-1)


@preset(axes=2, paper="RoPE-ViT (Heo 2024)", used_by="naver-ai rope-vit, timm vit_*_rope_*")
def rope_vit_axial(head_dim: int, *, theta: float = 100.0, **options: Any) -> RoPE:
    """RoPE-Axial: w = 100^(-i / F), columns first, interleaved, token indices."""
    return RoPE(head_dim, 2, columns_first(head_dim, theta), **options)


@preset(axes=2, paper="RoPE-ViT (Heo 2024)", used_by="naver-ai rope-vit, timm vit_*_rope_mixed_*")
def rope_vit_mixed(
    head_dim: int, *, theta: float = 10.0, heads: int | None = None, seed: int = 0, learned: bool = True, **options: Any
) -> RoPE:
    """RoPE-Mixed: two-dimensional wave vectors, learned, its own for each head and (through `wrap` or `make`) for each layer.

    Begins in the plane (x, y) as m_i (cos a, sin a) for the first half of the pairs, m_i (cos(a + pi/2), sin(a + pi/2)) for the
    second, m_i = 10^(-i / F), a ~ U(0, 2 pi) one a head. Interleaved, token indices. No weight decay on the frequencies.
    """
    start = mixed(head_dim // 2, 2, heads=heads or 1, theta=theta, seed=seed).flip(-1)  # [H, P, 2], (x, y) -> (h, w)
    return RoPE(head_dim, 2, start, heads=heads, learned=learned, **options)


@preset(axes=2, paper="EVA-02 (Fang 2023)", used_by="EVA-02, EVA-02-CLIP, timm eva02_*, vit_*_rope_reg*_gap_256")
def eva02(head_dim: int, *, theta: float = 10000.0, reference: tuple[int, int] = (16, 16), **options: Any) -> RoPE:
    """Axial, w = 10000^(-i / F), rows first, interleaved; the grid is laid over one of 16 x 16 tokens: x = i · 16 / N.

    `reference` is the grid of pre-training (224 / 14), whatever the model's own; 24 x 24 and 32 x 32 grids have smaller steps.
    """
    coordinates = {"normalize": "reference", "reference": reference}
    return RoPE(head_dim, 2, theta=theta, **{"coordinates": coordinates, **options})


@preset(axes=2, paper="DINOv3 (Simeoni 2025)", used_by="DINOv3, timm vit_*_dinov3, Sapiens 2")
def dinov3(
    head_dim: int,
    *,
    theta: float = 100.0,
    periods: tuple[float, float] | None = None,
    normalize: Literal["separate", "min", "max"] = "separate",
    **options: Any,
) -> RoPE:
    """Axial over centred coordinates: angle 2 pi x / T_i, T_i = 100^(i / F), rows first, half layout.

    x = 2 (i + 1/2) / N - 1, which runs over (-1, 1) on each axis whatever the size. `normalize="min"` or `"max"` divides by the
    shortest or longest axis instead of each by its own. `periods=(shortest, longest)` spaces T evenly in the logarithm with both
    ends met, in place of the base. For training see `DINOV3_AUGMENT`; with "min" and "max" our coordinates are half of x, so a
    shift must be halved too. Meta's weights were trained with T rounded to bfloat16, which is not done here.
    """
    choose("normalize", normalize, ("separate", "min", "max"))
    schedule: dict[str, Any] = {"theta": theta} if periods is None else {"schedule": "wavelength", "wavelength": periods}
    turns = 1.0 if periods else 2 * math.pi  # a wavelength has its 2 pi already
    coordinates: dict[str, Any] = {"normalize": "centred"}
    if normalize != "separate":  # 2 x - 1 with x of another axis's length is not centred on this one
        turns *= 2
        coordinates = {"normalize": "unit", "by": {"min": "shortest", "max": "longest"}[normalize], "offset": -0.5}
    freqs = turns * axial(head_dim // 2, 2, **schedule)  # [1, P, 2]
    return RoPE(head_dim, 2, freqs, **{"layout": "half", "coordinates": coordinates, **options})


@preset(axes=2, paper="Perception Encoder (Bolya 2025)", used_by="PE core, lang, spatial; timm vit_pe_*")
def perception_encoder(
    head_dim: int,
    *,
    theta: float = 10000.0,
    reference: tuple[int, int] | None = None,
    offset: float = 1.0,
    trained_extent: tuple[int, int] | None = None,
    **options: Any,
) -> RoPE:
    """Axial, w = 10000^(-i / F), columns first, interleaved; x = (i + 1) R / N over a reference grid of R tokens.

    `reference` is the grid the model was trained at: `trained_extent` by default, 24 x 24 without one. The offset keeps patches
    off the origin, where the class token is; PE-G, which has none, has offset 0.
    """
    extent = reference or trained_extent or (24, 24)
    coordinates = {"normalize": "reference", "reference": extent, "offset": offset}
    freqs = columns_first(head_dim, theta)
    return RoPE(head_dim, 2, freqs, trained_extent=trained_extent, **{"coordinates": coordinates, **options})


@preset(axes=2, paper="Pixtral (Agrawal 2024)", used_by="Pixtral, Mistral 3 vision")
def pixtral(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """One spectrum over all pairs, its even entries to rows, its odd ones to columns; rows first, half layout.

    m_j = 10000^(-j / P), j = 0 .. P - 1: rows have m_0, m_2, .., columns m_1, m_3, ..: columns turn a little slower than rows.
    """
    at = torch.arange(head_dim // 2, device="cpu")
    freqs = _dealt(magnitudes(head_dim // 2, theta=theta), at % 2)
    return RoPE(head_dim, 2, torch.cat((freqs[0::2], freqs[1::2])), **{"layout": "half", **options})


@preset(axes=2, paper="Llama 4 (Meta 2025)", used_by="Llama 4 vision")
def llama4_vision(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial, w = 10000^(-i / F), columns first, interleaved; x = i + 1.

    The class token comes last and is not turned: give it position (0, 0), which no patch has. `prefix_tokens` stand before.
    """
    return RoPE(head_dim, 2, columns_first(head_dim, theta), **{"coordinates": {"offset": 1}, **options})


@preset(axes=2, paper="Gemma 4 (Google)", used_by="Gemma 4 vision, timm gemma4_vit")
def gemma4_vision(head_dim: int, *, theta: float = 100.0, **options: Any) -> RoPE:
    """Axial, w = 100^(-i / F), columns first, token indices.

    The origin has a half layout in each half of the head: the first D / 2 channels turn with the column and pair i with
    i + D / 4, the last with the row. Ours is the half layout of the whole head: the two middle quarters of q and k exchanged
    (`exchange_middle`, its own inverse), which no score can tell. `wrap` does so on timm's Gemma 4.
    """
    return RoPE(head_dim, 2, columns_first(head_dim, theta), **{"layout": "half", **options})


def exchange_middle(x: Tensor) -> Tensor:
    """Exchange the two middle quarters of the channels `[.., D]`: half layout within each half of a head <-> of the whole head."""
    first, second, third, fourth = x.chunk(4, dim=-1)
    return torch.cat((first, third, second, fourth), dim=-1)


@preset(axes=2, paper="Qwen2-VL (Wang 2024)", used_by="Qwen2-VL, Qwen2.5-VL, GLM-4V, Ernie 4.5 VL, PaddleOCR-VL vision, GLM-Image")
def qwen2_vl_vision(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial, w = 10000^(-i / F), rows first, half layout, token indices.

    Those towers order tokens by blocks of 2 x 2 that are merged later: give `rope(positions)` the positions in that order.
    """
    return RoPE(head_dim, 2, theta=theta, **{"layout": "half", **options})


@preset(axes=2, paper="Qwen3-VL (Bai 2025)", used_by="Qwen3-VL, Qwen3-Omni, Qwen3.5 vision")
def qwen3_vl_vision(head_dim: int, **options: Any) -> RoPE:
    """As `qwen2_vl_vision`; those models add a resized table of positions besides."""
    return qwen2_vl_vision(head_dim, **options)


@preset(axes=2, paper="Kimi-VL (Kimi 2025)", used_by="MoonViT, Kimi-VL, Kimi K2.5 vision")
def moonvit(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Column and row in turn, w = 10000^(-i / F) for both of each two pairs; token indices.

    Interleaved as published; ports that split the head in halves take `layout="half"`.
    """
    at = torch.arange(head_dim // 2, device="cpu")
    size = magnitudes((len(at) + 1) // 2, theta=theta)[at // 2]  # [P], each twice
    return RoPE(head_dim, 2, _dealt(size, 1 - at % 2), **options)


@preset(axes=2, paper="SAM 2 (Ravi 2024)", used_by="SAM 2 memory attention, EdgeTAM, SAM 3 tracker")
def sam2(head_dim: int, *, theta: float = 10000.0, **options: Any) -> RoPE:
    """Axial, w = 10000^(-i / F), columns first, interleaved, token indices.

    Keys of several remembered frames have the positions of one frame repeated; object pointers among the keys are not turned.
    """
    return RoPE(head_dim, 2, columns_first(head_dim, theta), **options)


@preset(axes=2, paper="SAM 3 (Carion 2025)", used_by="SAM 3 image encoder")
def sam3(head_dim: int, *, theta: float = 10000.0, reference: tuple[int, int] = (24, 24), **options: Any) -> RoPE:
    """As `sam2`, the grid laid over one window: x = i · 24 / N, so that layers with windows and without have one range."""
    coordinates = {"normalize": "reference", "reference": reference}
    return RoPE(head_dim, 2, columns_first(head_dim, theta), **{"coordinates": coordinates, **options})


@preset(axes=2, paper="GenLIP", used_by="timm NaFlexVit and Eva with rope_type='mrope'")
def genlip(head_dim: int, *, theta: float = 10000.0, sections: tuple[int, int, int] = (8, 12, 12), **options: Any) -> RoPE:
    """Interleaved M-RoPE of an image: one spectrum m_j = 10000^(-j / P), pairs dealt to (t, h, w) in turn, half layout.

    An image has no time: the pairs of t (j = 0, 3, ..) are not turned, nor are those beyond 3 · `sections` of an axis.
    """
    at = torch.arange(head_dim // 2, device="cpu")
    turned = ((at % 3 == 1) & (at < 3 * sections[1])) | ((at % 3 == 2) & (at < 3 * sections[2]))
    freqs = _dealt(magnitudes(len(at), theta=theta) * turned, (at % 3 - 1).clamp(min=0))
    return RoPE(head_dim, 2, freqs, **{"layout": "half", **options})
