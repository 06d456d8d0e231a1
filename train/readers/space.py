"""Volumes in millimetres, and how they are brought to one orientation.

Voxels come in the axis order (z, y, x), where z grows towards the head (superior), y to the front (anterior) and x to the right of
the patient, each as nearly as the scan's own axes allow: axes are swapped and flipped, never resampled. `affine` takes (z, y, x, 1)
to millimetres right, anterior and superior, and says how far from these the axes really are.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from train.bad import BadFile


class Volume(NamedTuple):
    voxels: Tensor  # float32 [C, D, H, W]
    spacing: Tensor  # float64 [3], millimetres along z, y, x
    affine: Tensor  # float64 [4, 4], from (z, y, x, 1) to (right, anterior, superior, 1)


def canonical(data: np.ndarray, affine: np.ndarray, what: Any) -> Volume:
    """Voxels [I, J, K, C], and what takes (i, j, k, 1) to right, anterior, superior, with axes swapped and flipped to (z, y, x)."""
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or (lengths <= 0).any() or abs(np.linalg.det(affine[:3, :3] / lengths)) < 1e-6:
        raise BadFile(f"{what}: the directions of its axes make no sense: {affine[:3].tolist()}")
    cosines = affine[:3, :3] / lengths  # [RAS, ijk]
    best = max(permutations(range(3)), key=lambda axes: sum(abs(cosines[way, axis]) for way, axis in enumerate(axes)))
    move = np.zeros((4, 4))  # from (z, y, x, 1) to (i, j, k, 1)
    move[3, 3] = 1
    for new, axis in enumerate(best[::-1]):
        backwards = cosines[2 - new, axis] < 0
        move[axis, new], move[axis, 3] = (-1, data.shape[axis] - 1) if backwards else (1, 0)
    moved = np.transpose(data, (3, *best[::-1]))  # [C, D, H, W], flipped where the index runs backwards
    moved = np.flip(moved, tuple(new + 1 for new in range(3) if move[:3, new].sum() < 0))
    turned = affine @ move
    spacing = np.linalg.norm(turned[:3, :3], axis=0)
    return Volume(torch.from_numpy(np.ascontiguousarray(moved, np.float32)), torch.from_numpy(spacing), torch.from_numpy(turned))
