"""The rotary encodings that timm models come with, as a `RoPE` of the same angles: what they lack (scaling, any size) it has."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from timm.layers import pos_embed_sincos as timm_rope
from torch import Tensor, nn

from ..rope import RoPE


class TimmMixed(RoPE):
    """One layer of timm's mixed RoPE, whose frequencies stay where the checkpoint keeps them."""

    def __init__(self, source: nn.Module, index: int, head_dim: int, **options: Any) -> None:
        super().__init__(head_dim, 2, freqs=_mixed(source, index), **options)
        self.source, self.index = (source,), index  # in a tuple: the parameter keeps the one name it has

    def vectors(self) -> Tensor:
        return _mixed(self.source[0], self.index)


def _mixed(source: Any, layer: int) -> Tensor:
    """`[2, layers, H, P]` with columns first ("xy") -> `[H, P, 2]` with rows first."""
    freqs = source.freqs[:, layer].movedim(0, -1)
    return freqs.flip(-1) if source.grid_indexing == "xy" else freqs


def native(rope: nn.Module, head_dim: int, layers: int, **options: Any) -> nn.Module:
    """The `RoPE` (one a layer where frequencies are learned) that turns as timm's module `rope` does, at any size.

    `options` go to `RoPE`: prefix_tokens, trained_extent, scaling, temperature, strength. Raises ValueError for a module that it
    does not know, naming it.
    """
    if type(rope) is timm_rope.RotaryEmbeddingMixed:
        return nn.ModuleList(TimmMixed(rope, layer, head_dim, **options) for layer in range(layers))
    freqs, layout, coordinates = _table(rope)
    return RoPE(head_dim, 2, freqs=freqs, layout=layout, coordinates=coordinates, **options)  # type: ignore[arg-type]


def augmentation(rope: nn.Module) -> dict[str, float]:
    """The coordinate augmentation that timm's module draws in training, as `wrap` takes it."""
    found = {name: getattr(rope, f"{name}_coords", None) for name in ("shift", "jitter", "rescale")}
    return {name: value for name, value in found.items() if value is not None}


def layout_of(rope: nn.Module | None) -> str:
    """Which channels a model pairs; interleaved where it turned none so far."""
    if type(rope).__name__ in ("RotaryEmbeddingMRope", "Gemma4RotaryEmbedding2D"):
        return "half"
    return "half" if getattr(rope, "rotate_half", False) else "interleaved"


def _table(rope: Any) -> tuple[Tensor, str, dict[str, Any]]:
    """Wave vectors `[P, 2]`, layout, and coordinates of a fixed rotary module."""
    layout, coordinates = layout_of(rope), {"offset": getattr(rope, "grid_offset", 0.0)}
    swapped = getattr(rope, "grid_indexing", "ij") == "xy"
    if type(rope) is timm_rope.RotaryEmbeddingCat:
        if rope.in_pixels or getattr(rope, "grid_type", "index") != "index":
            raise ValueError(f"wrap does not know the coordinates of {type(rope).__name__}: it takes those of an index grid")
        if rope.ref_feat_shape is not None:
            coordinates |= {"normalize": "reference", "reference": tuple(rope.ref_feat_shape)}
        return _blocks(_geometric(rope.dim // 4, rope.temperature), swapped), layout, coordinates
    if type(rope) is timm_rope.RotaryEmbeddingDinoV3:
        return _dinov3(rope, swapped, layout)
    if type(rope) is getattr(timm_rope, "RotaryEmbeddingMRope", None):
        pairs = torch.arange(rope.dim // 2, device="cpu")
        axis = torch.zeros_like(pairs)  # 0: time, which an image has none of; 1: rows; 2: columns
        axis[1 : rope.mrope_section[1] * 3 : 3], axis[2 : rope.mrope_section[2] * 3 : 3] = 1, 2
        magnitude = _geometric(rope.dim // 2, rope.temperature)
        return torch.stack([magnitude * (axis == a) for a in (1, 2)], dim=-1), layout, {}
    if type(rope) is getattr(sys.modules.get("timm.models.gemma4_vit"), "Gemma4RotaryEmbedding2D", None):
        return _blocks(_geometric(rope.head_dim // 4, rope.rope_theta), swapped=True), layout, {}
    raise ValueError(f"wrap does not know the rotary module {type(rope).__name__}")


def _periods(count: int, theta: float) -> Tensor:
    """theta^(i / count) with timm's float32 rounding: the model was trained with these."""
    return float(theta) ** (torch.arange(count, dtype=torch.float32, device="cpu") / count)


def _geometric(count: int, theta: float) -> Tensor:
    return (1 / _periods(count, theta)).double()


def _blocks(magnitudes: Tensor, swapped: bool) -> Tensor:
    """Each axis all magnitudes: `[P, 2]`, the pairs of rows first, or of columns (`swapped`)."""
    rows = torch.stack((magnitudes, torch.zeros_like(magnitudes)), dim=-1)
    return torch.cat((rows.flip(-1), rows) if swapped else (rows, rows.flip(-1)))


def _dinov3(rope: Any, swapped: bool, layout: str) -> tuple[Tensor, str, dict[str, Any]]:
    """DINOv3: periods over coordinates in (-1, 1), each axis by its own length or all by one."""
    count = rope.dim // 4
    if rope.min_period is not None and rope.max_period is not None:
        share = torch.linspace(0, 1, count, device="cpu")
        periods = rope.min_period * (rope.max_period / rope.min_period) ** share
    else:
        periods = _periods(count, rope.temperature)
    periods = periods.double()
    if rope.grid_offset:
        raise ValueError(f"grid_offset={rope.grid_offset}: wrap does not know centred coordinates with an offset")
    if rope.normalize_coords == "separate":
        return _blocks(2 * math.pi / periods, swapped), layout, {"normalize": "centred"}
    by = {"min": "shortest", "max": "longest"}[rope.normalize_coords]  # 2 x - 1 of x in (0, 1): not centred on the other axis
    return _blocks(4 * math.pi / periods, swapped), layout, {"normalize": "unit", "by": by, "offset": -0.5}
