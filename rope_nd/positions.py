"""Where a token is: coordinates of token grids, points, kept subsets and padded batches.

Positions are `[N, A]` or `[B, N, A]`: N tokens, A axes, in array order ((h, w), (t, h, w), (d, h, w)). Tokens of a grid
come row by row, the last axis fastest, as `x.flatten(2)` of a `[B, C, *extent]` tensor orders them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ._check import check_extent, choose, per_axis, readable

Mode = Literal["index", "signed", "centred", "unit", "reference"]
Normalize = Mode | Sequence[Mode]
By = Literal["axis", "shortest", "longest", "reference"]
Numbers = float | Sequence[float]
Extent = Sequence[int] | Tensor  # tokens an axis: whole numbers, or a tensor [A] that is not to be looked at


def wide(device: torch.device | str | None) -> torch.dtype:
    """float64 where the device has it, float32 on the one that has not (MPS)."""
    return torch.float32 if device is not None and torch.device(device).type == "mps" else torch.float64


def sizes(extent: Extent, device: torch.device | str | None = None) -> Tensor:
    """Token counts as a tensor `[A]`, also for symbolic sizes, so that what follows needs no guard on them."""
    if isinstance(extent, Tensor):
        return extent.to(device, wide(device))
    return torch.stack([torch.scalar_tensor(n, dtype=wide(device), device=device) for n in extent])


def modes(normalize: Normalize | None, axes: int) -> tuple[str, ...]:
    """How each axis is measured, from one name or one an axis."""
    each = (normalize or "index",) * axes if normalize is None or isinstance(normalize, str) else tuple(normalize)
    if len(each) != axes:
        raise ValueError(f"normalize={normalize!r} has {len(each)} entries for {axes} axes: give one name, or one an axis")
    return tuple(choose("normalize", mode, get_args(Mode)) for mode in each)


def steps(
    extent: Extent,
    *,
    spacing: Numbers = 1,
    normalize: Normalize | None = None,
    by: By = "axis",
    reference: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Distance between neighbours along each axis, `[A]`; see `grid` for the choices."""
    each = modes(normalize, len(extent))
    choose("by", by, get_args(By))
    if ("reference" in each or by == "reference") and reference is None:
        raise ValueError("reference=None: give the reference extent, one token count an axis, for example (14, 14)")
    if reference is not None and len(reference) != len(extent):
        raise ValueError(f"reference={reference!r} has {len(reference)} entries for {len(extent)} axes")
    count = sizes(extent, device)  # [A]
    pitch = count.new_tensor(per_axis("spacing", spacing, len(extent)))  # [A]
    if set(each) <= {"index", "signed"}:
        return pitch
    other = count if reference is None else sizes(check_extent(tuple(reference), "reference"), device)
    length = (other if by == "reference" else count) * pitch  # [A]
    if by in ("shortest", "longest"):
        measured = torch.stack([n for n, mode in zip(length, each) if mode not in ("index", "signed")])
        length = measured.amin(0) if by == "shortest" else measured.amax(0)
    share = pitch / length
    found = {"index": pitch, "signed": pitch, "reference": pitch * other / count, "centred": share * 2, "unit": share}
    return torch.stack([found[mode].expand_as(pitch)[axis] for axis, mode in enumerate(each)])


def starts(
    extent: Extent, step: Tensor, *, spacing: Numbers = 1, offset: Numbers = 0, normalize: Normalize | None = None
) -> Tensor:
    """Coordinate of the first token along each axis, `[A]`, for neighbours that are `step` apart."""
    each, start = modes(normalize, len(extent)), step.new_tensor(per_axis("offset", offset, len(extent)))
    if set(each) == {"index"}:
        return start
    pitch, count = step.new_tensor(per_axis("spacing", spacing, len(extent))), sizes(extent, step.device)
    found = {"index": start, "signed": start - pitch * torch.ceil(count / 2), "reference": start * step / pitch}
    found |= {"centred": start - step * (count - 1) / 2, "unit": start + step / 2}
    return torch.stack([found[mode][axis] for axis, mode in enumerate(each)])


def axis_coordinates(
    *extent: int,
    spacing: Numbers = 1,
    offset: Numbers = 0,
    normalize: Normalize | None = None,
    by: By = "axis",
    reference: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, ...]:
    """The coordinates along each axis, A tensors `[N_a]`: what `grid` takes the product of."""
    check_extent(extent)
    step = steps(extent, spacing=spacing, normalize=normalize, by=by, reference=reference, device=device)  # [A]
    start = starts(extent, step, spacing=spacing, offset=offset, normalize=normalize)
    return tuple((torch.arange(n, device=device) * step[a] + start[a]).to(dtype) for a, n in enumerate(extent))


def place(
    indices: Tensor,
    extent: Extent,
    *,
    spacing: Numbers = 1,
    offset: Numbers = 0,
    normalize: Normalize | None = None,
    by: By = "axis",
    reference: Sequence[int] | None = None,
) -> Tensor:
    """Coordinates of chosen tokens `[.., A]` of a grid, by their indices along each axis: what `grid` has in those places."""
    step = steps(extent, spacing=spacing, normalize=normalize, by=by, reference=reference, device=indices.device)
    return indices.to(step.dtype) * step + starts(extent, step, spacing=spacing, offset=offset, normalize=normalize)


def grid(
    *extent: int,
    spacing: Numbers = 1,
    offset: Numbers = 0,
    normalize: Normalize | None = None,
    by: By = "axis",
    reference: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Coordinates of every token of a grid: `grid(14, 14)` -> `[196, 2]`, any number of axes.

    With N_a tokens, spacing d_a, i = 0 .. N_a - 1 and L the length that `by` names (N_a d_a of the axis itself, of the
    shortest axis, of the longest axis, or of the `reference` extent):

    - `None` or `"index"`: x = offset + d_a i. Units of `spacing`: tokens, pixels, seconds (tubelet / fps), millimetres.
    - `"signed"`: x = offset + d_a (i - ceil(N_a / 2)): whole numbers around zero (Qwen-Image).
    - `"centred"`: x = offset + (2 i + 1 - N_a) d_a / L, which runs over (-1, 1) (DINOv3).
    - `"unit"`: x = offset + (i + 1/2) d_a / L, which runs over (0, 1).
    - `"reference"`: x = (offset + d_a i) R_a / N_a: the grid laid over a reference grid of R tokens (EVA-02).
    - one of these an axis: `grid(8, 14, 14, normalize=("index", "centred", "centred"))`; the shortest and longest axis are found
      among those that are normalised.

    Returns `[N_1 · … · N_A, A]` in `dtype` (float32; float64 on request), computed in float64 where the device has it.
    Raises ValueError for extents below one, wrong counts of numbers and unknown names.
    """
    columns = axis_coordinates(
        *extent, spacing=spacing, offset=offset, normalize=normalize, by=by, reference=reference, dtype=dtype, device=device
    )
    return torch.stack(torch.meshgrid(*columns, indexing="ij"), dim=-1).flatten(0, -2)  # [N, A]


def as_positions(positions: Tensor, axes: int) -> Tensor:
    """Check arbitrary points: `[N, A]` or `[B, N, A]`, finite, precise enough to tell neighbours apart.

    Integers become float64 (float32 on a device without it). Half precision is refused: bfloat16 has no 257.
    """
    if not isinstance(positions, Tensor):
        raise ValueError(f"positions must be a tensor [N, {axes}] or [B, N, {axes}], got {type(positions).__name__}")
    if positions.ndim not in (2, 3) or positions.shape[-1] != axes:
        raise ValueError(f"positions of shape {list(positions.shape)}: expected [N, {axes}] or [B, N, {axes}], one column an axis")
    if not positions.is_floating_point():
        return positions.to(wide(positions.device))
    if positions.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"positions are {positions.dtype}, which cannot tell 256 from 257: give float32 or float64")
    if readable(positions) and not bool(torch.isfinite(positions).all()):
        bad = int((~torch.isfinite(positions)).any(-1).sum())
        raise ValueError(f"{bad} of the positions hold NaN or infinity: give finite coordinates")
    return positions


def keep(positions: Tensor, indices: Tensor) -> Tensor:
    """Positions of the kept tokens: `[N, A]` or `[B, N, A]` with `indices` `[B, K]` (or `[K]`) -> `[B, K, A]` (`[K, A]`)."""
    if indices.ndim == 1:
        return positions[..., indices, :]
    points = positions.expand(indices.shape[0], *positions.shape[-2:])  # [B, N, A]
    return points.gather(1, indices[..., None].expand(*indices.shape, points.shape[-1]))  # [B, K, A]


def batch_grids(
    extents: Sequence[Sequence[int]],
    *,
    spacing: Numbers | Sequence[Sequence[float]] = 1,
    offset: Numbers = 0,
    normalize: Normalize | None = None,
    by: By = "axis",
    reference: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Grids of different extents in one padded batch.

    `extents` holds one extent a sample, all of the same rank; `spacing` may hold one entry a sample too (a list of lists).
    Returns positions `[B, max N, A]`, padded with zeros, and `valid` `[B, max N]`, false where a token is padding.
    """
    ranks = {len(extent) for extent in extents}
    if len(ranks) != 1:
        raise ValueError(f"extents={list(extents)!r}: give at least one, all with the same number of axes")
    per_sample = isinstance(spacing, (list, tuple)) and isinstance(spacing[0], (list, tuple))
    each = list(spacing) if per_sample else [spacing] * len(extents)  # type: ignore[arg-type]
    if len(each) != len(extents):
        raise ValueError(f"spacing has {len(each)} entries for {len(extents)} samples")
    grids = [
        grid(*e, spacing=s, offset=offset, normalize=normalize, by=by, reference=reference, dtype=dtype, device=device)  # type: ignore[arg-type]
        for e, s in zip(extents, each)
    ]
    padded = torch.nn.utils.rnn.pad_sequence(grids, batch_first=True)  # [B, max N, A]
    lengths = torch.tensor([len(g) for g in grids], device=device)
    return padded, torch.arange(padded.shape[1], device=device) < lengths[:, None]


def augment(
    positions: Tensor,
    *,
    batch: int | None = None,
    shift: Numbers = 0.0,
    jitter: Numbers = 1.0,
    rescale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Coordinate augmentation for training (after DINOv3), one draw a sample: `[N, A]` or `[B, N, A]` -> `[B, N, A]`.

    x <- (x + U(-shift, shift)) · exp U(-ln jitter, ln jitter) · exp U(-ln rescale, ln rescale)

    Shift and jitter are drawn per axis, rescale for all axes at once. `shift` is in units of the positions, `jitter` and
    `rescale` are factors of at least one. With the same generator state the draws are the same, on any device.
    """
    axes = positions.shape[-1]
    size = positions.shape[0] if positions.ndim == 3 else batch
    if size is None:
        raise ValueError("positions are [N, A] and batch=None: give the batch size, so that each sample has its own draw")
    low, spread = per_axis("shift", shift, axes), per_axis("jitter", jitter, axes)
    if min(low) < 0 or min(spread) < 1 or rescale < 1:
        raise ValueError(f"shift={shift!r} must be at least 0, jitter={jitter!r} and rescale={rescale!r} at least 1")
    home = generator.device if generator is not None else "cpu"
    draw = torch.rand(size, 1, 2 * axes + 1, generator=generator, device=home).to(positions) * 2 - 1  # [B, 1, 2A + 1]
    moved = positions + draw[..., :axes] * positions.new_tensor(low)
    stretch = draw[..., axes:-1] * positions.new_tensor(spread).log() + draw[..., -1:] * positions.new_tensor(rescale).log()
    return moved * stretch.exp()
