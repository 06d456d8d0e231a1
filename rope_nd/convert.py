"""Frequencies as other projects store them, to wave vectors `[H|1, P, A]` and back, to the last bit.

    RoPE(64, 2, freqs=from_periods(checkpoint["rope_embed.periods"]), layout="half", coordinates={"normalize": "centred"})
    model.load_state_dict(from_timm(timm_state), strict=False)          # a model wrapped with "rope_vit_mixed"

Queries and keys whose layout differs are converted by `convert_layout`, which moves the rows of their projections.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from ._check import choose

Indexing = Literal["ij", "xy"]


def _check(what: str, x: Tensor, fits: bool, shape: str) -> None:
    if not fits:
        raise ValueError(f"{what} has shape {list(x.shape)}: expected {shape}")


def mixed_from_timm(freqs: Tensor, *, heads: int | None = None, indexing: Indexing = "xy") -> Tensor:
    """Learned frequencies of all layers, `[2, L, H, P]` (timm) or `[2, L, H · P]` (rope-vit, with `heads`) -> `[L, H, P, 2]`.

    Both store the part along columns first (`"xy"`; timm's `grid_indexing="ij"` models rows first).
    """
    choose("indexing", indexing, get_args(Indexing))
    _check("freqs", freqs, freqs.ndim in (3, 4) and freqs.shape[0] == 2, "[2, layers, heads, pairs], or [2, layers, heads · pairs]")
    if freqs.ndim == 3:
        if heads is None or freqs.shape[-1] % heads:
            raise ValueError(f"heads={heads}: freqs of shape {list(freqs.shape)} need the number of heads, a divisor of the last")
        freqs = freqs.unflatten(-1, (heads, -1))
    rows = freqs.movedim(0, -1)  # [L, H, P, 2]
    return rows.flip(-1) if indexing == "xy" else rows.clone()


def mixed_to_timm(freqs: Tensor, *, flat: bool = False, indexing: Indexing = "xy") -> Tensor:
    """The opposite of `mixed_from_timm`: `[L, H, P, 2]` -> `[2, L, H, P]`, or `[2, L, H · P]` if `flat` (rope-vit)."""
    choose("indexing", indexing, get_args(Indexing))
    _check("freqs", freqs, freqs.ndim == 4 and freqs.shape[-1] == 2, "[layers, heads, pairs, 2]")
    stored = (freqs.flip(-1) if indexing == "xy" else freqs).movedim(-1, 0).contiguous()
    return stored.flatten(2) if flat else stored


def from_timm(state: Mapping[str, Tensor], *, indexing: Indexing = "xy") -> dict[str, Tensor]:
    """A timm state dict with `rope.freqs`, and beside it the keys `encoding.<layer>.freqs` of a wrapped model."""
    if "rope.freqs" not in state:
        raise ValueError("the state dict has no rope.freqs: it is not of a timm model with mixed rotary frequencies")
    layers = mixed_from_timm(state["rope.freqs"], indexing=indexing)
    return {**state, **{f"encoding.{i}.freqs": layer.clone() for i, layer in enumerate(layers)}}


def to_timm(state: Mapping[str, Tensor], *, indexing: Indexing = "xy") -> dict[str, Tensor]:
    """The state dict of a wrapped model with learned frequencies, as timm's own model takes it."""
    found = {int(m[1]): name for name in state if (m := re.fullmatch(r"encoding\.(\d+)\.freqs", name))}
    if not found or sorted(found) != list(range(len(found))):
        raise ValueError(f"layers {sorted(found)} have encoding.<layer>.freqs: one for every layer is needed")
    layers = torch.stack([state[found[i]] for i in range(len(found))])  # [L, H, P, 2]
    rest = {name: value for name, value in state.items() if not name.startswith("encoding.")}
    return {**rest, "rope.freqs": mixed_to_timm(layers, indexing=indexing)}


def from_inv_freq(inv_freq: Tensor, *, axes: int = 1, turns: bool = False) -> Tensor:
    """`inv_freq` `[n]` of transformers, the same for each axis -> `[1, n · axes, axes]`, float64, blocks in axis order.

    `turns`: they count turns a unit and not radians, as DINOv3's do, whose angle is 2 pi x inv_freq.
    """
    _check("inv_freq", inv_freq, inv_freq.ndim == 1, "[frequencies]")
    magnitude = inv_freq.double() * (2 * math.pi if turns else 1)
    return torch.block_diag(*(magnitude[:, None] for _ in range(axes)))[None]


def to_inv_freq(freqs: Tensor, *, turns: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """The opposite of `from_inv_freq`: `[1, n · axes, axes]` -> `[n]`. ValueError unless every axis has the same, in blocks."""
    axes = freqs.shape[-1]
    _check("freqs", freqs, freqs.ndim == 3 and freqs.shape[0] == 1 and freqs.shape[1] % axes == 0, "[1, n · axes, axes]")
    magnitude = freqs[0, : freqs.shape[1] // axes, 0]  # [n]
    if not torch.equal(freqs[0], torch.block_diag(*(magnitude[:, None] for _ in range(axes)))):
        raise ValueError("these frequencies are not one list for every axis, in blocks: no inv_freq or periods hold them")
    return (magnitude.double() / (2 * math.pi if turns else 1)).to(dtype)


def from_periods(periods: Tensor) -> Tensor:
    """`rope_embed.periods` `[P / 2]` of DINOv3 (bfloat16 or float32), in units of its coordinates -> `[1, P, 2]`: w = 2 pi / T."""
    _check("periods", periods, periods.ndim == 1, "[pairs / 2]")
    return from_inv_freq(1 / periods.double(), axes=2, turns=True)


def to_periods(freqs: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The opposite of `from_periods`: `[1, P, 2]` -> `[P / 2]`; Meta's checkpoints hold bfloat16."""
    return (1 / to_inv_freq(freqs, turns=True, dtype=torch.float64)).to(dtype)
