"""MedMNIST files: an .npz with `train_images`, `train_labels` and so on for val and test, pictures or volumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from train.bad import BadFile, naming
from train.readers.packed import Packed

SPLITS = "train", "val", "test"
MOST = 2**33


class MedMNIST(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pictures (uint8 [C, H, W], label) or volumes (uint8 [1, D, H, W], label) of one split; the whole split is held in memory.

    Images are [N, H, W], [N, H, W, 3] or [N, D, H, W]; where the last of four axes is 3, it is colour. Labels are one number each;
    files with several yes-or-no labels a picture are refused. `most`: numbers of the split, by the header.
    """

    def __init__(self, path: str | Path, split: str, *, most: int = MOST) -> None:
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: choose one of {', '.join(SPLITS)}")
        images, labels = arrays(Path(path), split, most)
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise BadFile(f"{path}: {split}_images are {images.dtype} {list(images.shape)}: uint8 [N, H, W], with 3 or D, expected")
        if labels.ndim == 2 and labels.shape[1] > 1:
            raise BadFile(f"{path}: {labels.shape[1]} labels a picture; one class each is expected")
        if len(labels) != len(images) or labels.size != len(images) or not np.issubdtype(labels.dtype, np.integer):
            raise BadFile(f"{path}: {split}_labels are {labels.dtype} {list(labels.shape)} for {len(images)} images")
        coloured = images.ndim == 4 and images.shape[3] == 3
        self.images = torch.from_numpy(images).movedim(-1, 1) if coloured else torch.from_numpy(images)[:, None]
        self.labels = torch.from_numpy(labels.reshape(-1).astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


def arrays(path: Path, split: str, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels as stored; nothing is unpickled."""
    with naming(f"{path}: cannot be read as a MedMNIST file with {split}_images and {split}_labels"), Packed(path) as held:
        return held.read(f"{split}_images", most, "numbers"), held.read(f"{split}_labels", most, "numbers")
