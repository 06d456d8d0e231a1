"""Labelled images of which neighbours are looked for: a folder a class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from train.retrofit.images import files


def labelled(root: Path, samples: int | None, each: int = 8, seed: int = 0) -> tuple[list[Path], Tensor]:
    """Images of a folder a class and their labels; classes of one are left out.

    `samples` of them, always the same: `each` of a class at random, class after class in random order, so that few images still
    have neighbours of their own.
    """
    root = root / "val" if (root / "val").is_dir() else root
    members: dict[str, list[Path]] = {}
    for path in files(root):
        if len(path.relative_to(root).parts) < 2:
            raise ValueError(f"{path}: an image beside the folders; give a folder a class")
        members.setdefault(path.relative_to(root).parts[0], []).append(path)
    members = {name: found for name, found in members.items() if len(found) > 1}
    if samples is not None:
        members = _some(members, samples, each, torch.Generator().manual_seed(seed))
    if not members:
        raise ValueError(f"{root}: no class has two images{'' if samples is None else f' among samples={samples}'}")
    paths = [path for found in members.values() for path in found]
    return paths, torch.tensor([number for number, found in enumerate(members.values()) for _ in found])


def _some(members: dict[str, list[Path]], samples: int, each: int, random: torch.Generator) -> dict[str, list[Path]]:
    names, picked, left = list(members), {}, samples
    for place in torch.randperm(len(names), generator=random).tolist():
        found = members[names[place]]
        shuffled = torch.randperm(len(found), generator=random).tolist()[: min(each, left)]
        if len(shuffled) > 1:
            picked[names[place]] = sorted(found[index] for index in shuffled)
            left -= len(shuffled)
    return dict(sorted(picked.items()))
