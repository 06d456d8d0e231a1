"""Where frames come from: what a source can do, folders of pictures, and arrays."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from train import bad
from train.bad import BadFile, check_size, naming
from train.readers.packed import Packed, header

PICTURES = ".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"
ARRAYS = ".npy", ".npz"
Layout = Literal["thwc", "tchw", "cthw"]


class Source(ABC):
    """An opened clip: a number of frames, the seconds it lasts, its mean rate, and three ways to take frames out of it."""

    length: int
    duration: float
    fps: float

    @abstractmethod
    def at(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Frames of these numbers, uint8 [T, C, H, W], and their times, float64 [T]."""

    @abstractmethod
    def shown(self, seconds: Sequence[float]) -> tuple[Tensor, Tensor]:
        """The frame that is seen at each of these times, and when it came on."""

    @abstractmethod
    def during(self, start: float, stop: float) -> tuple[Tensor, Tensor]:
        """Every frame that is seen from start to stop (not included)."""


class Timed(Source):
    """A source that knows the times of all its frames, float64 [N]; the others follow from `take`."""

    times: np.ndarray

    @abstractmethod
    def take(self, numbers: Sequence[int]) -> Tensor:
        """Frames uint8 [T, C, H, W], in the given order."""

    def at(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.take(numbers), torch.from_numpy(self.times[list(numbers)])

    def shown(self, seconds: Sequence[float]) -> tuple[Tensor, Tensor]:
        return self.at(np.maximum(np.searchsorted(self.times, seconds, side="right") - 1, 0).tolist())

    def during(self, start: float, stop: float) -> tuple[Tensor, Tensor]:
        first = max(int(np.searchsorted(self.times, start, side="right")) - 1, 0)
        return self.at(range(first, int(np.searchsorted(self.times, stop, side="left"))))


class Still(Timed):
    """Frames at one rate."""

    def __init__(self, length: int, path: Path, fps: float | None) -> None:
        if fps is None or not 0 < fps < float("inf"):
            raise ValueError(f"{path}: says nothing about its frame rate, so give source_fps, in frames a second, above 0 ({fps=})")
        self.path, self.length, self.fps = path, length, float(fps)
        self.times, self.duration = np.arange(length) / self.fps, length / self.fps


class Frames(Still):
    """A folder of pictures, in natural order of their names: 2.png before 10.png."""

    def __init__(self, folder: Path, fps: float | None, most: int) -> None:
        self.most = most
        self.files = sorted((f for f in folder.iterdir() if f.suffix.lower() in PICTURES), key=natural)
        if not self.files:
            raise ValueError(f"{folder}: no pictures in it ({', '.join(PICTURES)})")
        super().__init__(len(self.files), folder, fps)

    def take(self, numbers: Sequence[int]) -> Tensor:
        pictures = [picture(self.files[n], self.most) for n in numbers]
        for n, drawn in zip(numbers, pictures):
            if drawn.shape != pictures[0].shape:
                first = self.files[numbers[0]].name
                raise BadFile(f"{self.files[n]}: {drawn.shape[:2]} pixels, but {first} has {pictures[0].shape[:2]}")
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


class Array(Still):
    """An .npy file, or an .npz file with one array, or one named `frames` beside the number `fps`.

    `most`: pixels of a frame in an .npy file, of which only the frames asked for are read, and of all frames in an .npz file.
    """

    def __init__(self, path: Path, fps: float | None, layout: Layout, most: int) -> None:
        found, stored = arrays(path, most)
        if found.dtype != np.uint8 or found.ndim not in (3, 4) or not found.size:
            raise BadFile(f"{path}: {found.dtype} {list(found.shape)}: a clip is uint8 [T, H, W] or, with channels, {layout!r}")
        axes = [layout.index(axis) for axis in "tchw"]
        self.frames = found[:, None] if found.ndim == 3 else found.transpose(axes)  # [T, C, H, W], not read yet if it is an .npy
        if self.frames.shape[1] not in (1, 3):
            raise BadFile(f"{path}: {list(found.shape)} read as {layout!r} has {self.frames.shape[1]} channels: give layout=")
        super().__init__(len(self.frames), path, stored if fps is None else fps)

    def take(self, numbers: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.frames[list(numbers)]))


def arrays(path: Path, most: int) -> tuple[np.ndarray, float | None]:
    """The frames of an array file, and its rate if it holds one. Nothing is unpickled."""
    with naming(f"{path}: cannot be read as a clip"):
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                check_size(header(file)[0][1:3], most)
            return np.load(path, mmap_mode="r", allow_pickle=False), None
        with Packed(path) as held:
            names = [name for name in held.names if name != "fps"]
            if "frames" not in names and len(names) != 1:
                raise ValueError(f"holds {', '.join(held.names) or 'nothing'}; one array, or one named frames, was expected")
            rate = float(held.read("fps", 1)) if "fps" in held.names else None
            return held.read("frames" if "frames" in names else names[0], most, axes=3), rate


def picture(path: Path, most: int) -> np.ndarray:
    """A picture of at most so many pixels, uint8 [H, W, 3]."""
    with naming(f"{path}: cannot be read as a picture"), path.open("rb") as file:
        return np.asarray(bad.picture(file, most).convert("RGB"))


def natural(path: Path) -> list[tuple[int, str]]:
    """Numbers in names compare as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
