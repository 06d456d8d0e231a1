"""Folders of clips and volumes, one folder a class: root/walking/a.mp4, root/brain/b.nii.gz."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F  # type: ignore[import-untyped]

from train.bad import MAX_PIXELS
from train.readers.clip import Clip, open_clip, sample
from train.readers.nifti import NIFTI
from train.readers.sources import ARRAYS, PICTURES, Layout, natural
from train.readers.space import Volume
from train.readers.video import Backend
from train.readers.volume import read_volume

NEAR = 0.2  # how far from the spacing that was asked for, over it
VIDEOS = ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".flv", ".wmv", ".ogv", ".gif"


class ClipFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Clips (uint8 [C, T, H, W], label) of video files, folders of frames, .npy and .npz files.

    count  frames of a clip; with `fps`, sampled at that rate from a window of count / fps seconds, otherwise from the whole file
    start  where that window lies: first, middle, or random, drawn each time from torch's generator, or from `seed` and the clip
    size   frames are resized to cover it, and the middle is cut out; one number or (height, width). None: as stored

    `classes` are the names of the folders, sorted; `read(i)` gives the clip with its times.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        count: int,
        fps: float | None = None,
        start: Literal["first", "middle", "random"] = "middle",
        size: int | tuple[int, int] | None = None,
        seed: int | None = None,
        source_fps: float | None = None,
        layout: Layout = "thwc",
        backend: Backend = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if start not in ("first", "middle", "random"):
            raise ValueError(f"start {start!r}: choose first, middle or random")
        self.count, self.fps, self.start, self.seed = count, fps, start, seed
        self.size = (size, size) if isinstance(size, int) else size
        self.told: dict[str, Any] = {"source_fps": source_fps, "layout": layout, "backend": backend, "max_pixels": max_pixels}
        self.classes, self.files, self.labels = scan(Path(root), is_clip, "clips")

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Clip:
        """The clip, with its times in seconds."""
        path = self.files[index]
        source = open_clip(path, **self.told)
        begin = 0.0
        if self.fps is not None and self.start != "first":
            begin = max(0.0, source.duration - self.count / self.fps) * self._share(index)
        found = sample(source, path, seconds=(begin, None), count=self.count, fps=self.fps)
        return found if self.size is None else found._replace(frames=fit(found.frames, self.size))

    def _share(self, index: int) -> float:
        """Where the window begins, from 0 to 1. Training seeds torch's generator by seed, epoch and clip."""
        if self.start == "middle":
            return 0.5
        return float(torch.rand(()) if self.seed is None else np.random.default_rng((self.seed, index)).random())

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.read(index).frames, self.labels[index]


class VolumeFolder(torch.utils.data.Dataset[Any]):
    """Volumes (float32 [C, D, H, W], label) of NIfTI files and folders of DICOM slices.

    size     voxels, (depth, height, width): the middle is cut out, and what is missing is filled with the least value
    window   (low, high): values between them become -1 to 1, others are cut off; without it each volume gets mean 0 and deviation 1
    spacing  millimetres along (z, y, x): voxels are averaged by the whole numbers that come nearest to it, never interpolated
    exact    a volume whose voxels do not come within a fifth of `spacing` is an error; otherwise coarser ones stay as they are
    spaced   samples are (volume, label, spacing float64 [3]), in millimetres, of the voxels that are given

    `classes` are the names of the folders, sorted; `read(i)` gives the volume as it is, with its spacing, which no option changes.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        size: tuple[int, int, int] | None = None,
        window: tuple[float, float] | None = None,
        spacing: tuple[float, float, float] | None = None,
        exact: bool = False,
        spaced: bool = False,
        max_voxels: int = MAX_PIXELS,
    ) -> None:
        if window is not None and not window[0] < window[1]:
            raise ValueError(f"window {window}: give (low, high), low first")
        if spacing is not None and (len(spacing) != 3 or min(spacing) <= 0):
            raise ValueError(f"spacing {spacing}: give millimetres along (z, y, x), each above 0")
        self.size, self.window, self.spacing, self.exact, self.spaced = size, window, spacing, exact, spaced
        self.max_voxels = max_voxels
        self.classes, self.files, self.labels = scan(Path(root), is_volume, "volumes")

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Volume:
        return read_volume(self.files[index], max_voxels=self.max_voxels)

    def __getitem__(self, index: int) -> Any:
        volume = self.read(index)
        by = self._by(volume.spacing.tolist(), self.files[index])
        voxels = levels(volume.voxels, self.window)
        if self.size is not None:
            voxels = middle(voxels, tuple(n * k for n, k in zip(self.size, by)))
        sample = averaged(voxels, by), self.labels[index]
        return (*sample, volume.spacing * torch.tensor(by)) if self.spaced else sample

    def _by(self, own: list[float], path: Path) -> tuple[int, ...]:
        """How many voxels of a file are averaged along each axis."""
        if self.spacing is None:
            return (1, 1, 1)
        by = tuple(max(1, round(wanted / mm)) for wanted, mm in zip(self.spacing, own))
        if self.exact and any(abs(mm * k / wanted - 1) > NEAR for mm, k, wanted in zip(own, by, self.spacing)):
            has, asked = (" x ".join(f"{mm:g}" for mm in given) for given in (own, self.spacing))
            raise ValueError(f"{path}: its voxels are {has} mm and cannot be averaged to {asked} mm: finer volumes are needed")
        return by


def scan(root: Path, wanted: Callable[[Path], bool], what: str) -> tuple[list[str], list[Path], list[int]]:
    """Names of classes, files, and the class of each file; a class without any is an error."""
    if not root.is_dir():
        raise ValueError(f"{root}: there is no such folder; give one that holds a folder a class")
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise ValueError(f"{root}: no class folders in it")
    found = [sorted((path for path in folder.iterdir() if wanted(path)), key=natural) for folder in folders]
    for folder, files in zip(folders, found):
        if not files:
            raise ValueError(f"{folder}: this class has no {what}")
    labels = [label for label, files in enumerate(found) for _ in files]
    return [folder.name for folder in folders], [file for files in found for file in files], labels


def is_clip(path: Path) -> bool:
    if path.is_dir():
        return any(file.suffix.lower() in PICTURES for file in path.iterdir())
    return path.suffix.lower() in VIDEOS + ARRAYS


def is_volume(path: Path) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or path.name.lower().endswith(NIFTI))


def fit(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Frames [C, T, H, W] resized to cover `size`, with the middle cut out: [C, T, h, w]."""
    scale = max(size[0] / frames.shape[2], size[1] / frames.shape[3])
    whole = [max(round(n * scale), least) for n, least in zip(frames.shape[2:], size)]
    resized = F.resize(frames.transpose(0, 1), whole, antialias=True)  # [T, C, H', W']
    return F.center_crop(resized, list(size)).transpose(0, 1).contiguous()


def levels(voxels: Tensor, window: tuple[float, float] | None) -> Tensor:
    """Values about unit range."""
    if window is not None:
        return ((voxels - window[0]) / (window[1] - window[0])).clamp(0, 1) * 2 - 1
    return (voxels - voxels.mean()) / voxels.std().clamp_min(1e-6)


def averaged(voxels: Tensor, by: tuple[int, ...]) -> Tensor:
    """Means of blocks [C, D, H, W] -> [C, D / z, H / y, W / x]; what is left over at the end of an axis is cut off."""
    if max(by) == 1:
        return voxels
    for axis, k in enumerate(by, start=1):
        whole = voxels.shape[axis] // k
        voxels = voxels.narrow(axis, 0, whole * k).unflatten(axis, (whole, k)).mean(axis + 1)
    return voxels


def middle(voxels: Tensor, size: tuple[int, ...]) -> Tensor:
    """The middle of a volume [C, D, H, W], cut out or filled up with the least value: [C, d, h, w]."""
    filled = voxels.new_full((len(voxels), *size), float(voxels.min()))
    for axis, want in enumerate(size, start=1):
        have = voxels.shape[axis]
        if have > want:
            voxels = voxels.narrow(axis, (have - want) // 2, want)
    corner = [(want - have) // 2 for want, have in zip(size, voxels.shape[1:])]
    z, y, x = (slice(c, c + n) for c, n in zip(corner, voxels.shape[1:]))
    filled[:, z, y, x] = voxels
    return filled
