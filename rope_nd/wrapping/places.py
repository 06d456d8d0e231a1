"""Where the tokens of one batch are: on a grid, on a grid with a spacing and a beginning of its own, or anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._check import readable
from ..positions import Extent, grid, sizes, wide

Measure = Sequence[float] | Sequence[Sequence[float]] | Tensor  # [A], or [B, A] for samples that differ


@dataclass(frozen=True)
class Places:
    """The places of patch tokens.

    `grid`: tokens an axis of the input, empty for points without a grid. `extent`: tokens an axis of the whole that scaling and
    normalised coordinates go by, counted at the trained spacing: whole numbers, or `[A]`, `[B, A]`. `indices`: places `[N, A]` or
    `[B, N, A]` in tokens at the trained spacing; None for those of the grid. `keep`: the tokens to be encoded, `[B, K]`.
    """

    grid: tuple[int, ...]
    extent: tuple[int, ...] | Tensor
    batch: int
    indices: Tensor | None = None
    keep: Tensor | None = None

    def spread(self, device: torch.device) -> Tensor:
        """The places themselves, `[N, A]` or `[B, N, A]`, float64 where the device has it."""
        return grid(*self.grid, dtype=wide(device), device=device) if self.indices is None else self.indices


def on_grid(
    tokens: tuple[int, ...],
    token: Sequence[float],
    trained: Sequence[float],
    *,
    spacing: Measure | None,
    offset: Measure | None,
    extent: Extent | None,
    keep: Tensor | None,
    batch: int,
    device: torch.device,
) -> Places:
    """Places of a grid of `tokens`, whose samples are `spacing` apart and begin at `offset`.

    Token i along axis a is at i spacing_a / trained_a + offset_a / (token_a trained_a): where the first sample of it is, in tokens
    at the trained spacing. `token`: samples (frames, pixels, slices) a token.
    """
    if keep is not None:
        keep = _checked(keep, batch)
    if spacing is None and offset is None and extent is None:
        return Places(tokens, tokens, batch, keep=keep)
    usual = _measure("trained spacing", trained, len(tokens), batch, device)  # [A]
    ratio = torch.ones_like(usual) if spacing is None else _measure("spacing", spacing, len(tokens), batch, device) / usual
    if readable(ratio) and not bool((ratio > 0).all()):
        raise ValueError(f"spacing={spacing!r} must be positive: seconds between frames (1 / fps), millimetres between voxels")
    indices = grid(*tokens, dtype=ratio.dtype, device=device) * ratio[..., None, :]  # [N, A] or [B, N, A]
    if offset is not None:
        shift = _measure("offset", offset, len(tokens), batch, device) / (usual * usual.new_tensor(token))
        indices = indices + shift[..., None, :]
    if extent is not None and len(extent) != len(tokens):
        raise ValueError(f"extent={tuple(extent)!r} has {len(extent)} entries for {len(tokens)} axes: give tokens an axis")
    return Places(tokens, sizes(tokens if extent is None else extent, device) * ratio, batch, indices, keep)


def _measure(name: str, value: Any, axes: int, batch: int, device: torch.device) -> Tensor:
    """`[A]` or `[B, A]`, float64 where the device has it."""
    found = torch.as_tensor(value, dtype=wide(device), device=device)
    if tuple(found.shape) not in ((axes,), (batch, axes)):
        raise ValueError(f"{name} of shape {list(found.shape)}: give [{axes}], a number an axis, or [{batch}, {axes}] for samples")
    if readable(found) and not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name}={value!r} holds something that is not a finite number")
    return found


def _checked(keep: Tensor, batch: int) -> Tensor:
    """Indices `[B, K]` of kept tokens."""
    each = keep.expand(batch, -1) if keep.ndim == 1 else keep
    if each.ndim != 2 or each.shape[0] != batch or each.is_floating_point() or each.dtype == torch.bool:
        raise ValueError(f"keep is {keep.dtype} of shape {list(keep.shape)}: give token indices [B, K], here [{batch}, K]")
    return each
