"""Images without labels: any tree of files; what a step sees is a function of the seed and the step."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as tv

from rope_nd.look import opaque
from train import bad
from train.bad import naming
from train.draws import draws

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
WHITE = (255, 255, 255)


def files(root: Path) -> list[Path]:
    """All images below a folder, in order of their paths."""
    if not root.is_dir():
        raise ValueError(f"{root}: there is no such folder; give one with images in it, however nested")
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in ENDINGS)
    if not found:
        raise ValueError(f"{root}: no images in it ({', '.join(ENDINGS)})")
    return found


def split(root: Path, held: float = 0.1) -> tuple[list[Path], list[Path]]:
    """Training images and held-out ones: train/ and val/ where both are there, else a share by a checksum of the path."""
    if (root / "train").is_dir() and (root / "val").is_dir():
        return files(root / "train"), files(root / "val")
    every = files(root)
    away = [zlib.crc32(path.relative_to(root).as_posix().encode()) < held * 2**32 for path in every]
    train, val = ([path for path, out in zip(every, away) if out is side] for side in (False, True))
    return (train, val) if train and val else (every, every)


def opened(path: Path, background: tuple[int, int, int] = WHITE) -> Image.Image:
    """A file as an RGB image of at most MAX_PIXELS; where it is transparent, on `background`."""
    with naming(f"cannot read {path}"), path.open("rb") as file:
        found = bad.picture(file)
        return opaque(found, background)


def whole(path: Path, size: int) -> Tensor:
    """An image on white, its longer side `size`, padded to a square: uint8 `[3, size, size]`."""
    image = opened(path)
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (size, size), WHITE)
    square.paste(image.resize((width, height), Image.Resampling.BICUBIC), ((size - width) // 2, (size - height) // 2))
    return tv.pil_to_tensor(square)


def box(width: int, height: int, least: float, random: torch.Generator) -> tuple[float, float, float, float]:
    """A random crop (left, upper, right, lower): `least` to all of the area, sides 3:4 to 4:3, as far as the image allows."""
    area, shape, x, y = torch.rand(4, generator=random).tolist()
    ratio = (3 / 4) ** (1 - 2 * shape)
    side = (width * height * (least + (1 - least) * area)) ** 0.5
    w, h = min(width, side * ratio**0.5), min(height, side / ratio**0.5)
    left, upper = x * (width - w), y * (height - h)
    return left, upper, left + w, upper + h


def augmented(path: Path, sizes: Sequence[int], least: float, random: torch.Generator) -> list[Tensor]:
    """One random crop of an image, mirrored or not, on a random colour, at each of `sizes`: uint8 `[3, size, size]`."""
    colour = torch.randint(256, (3,), generator=random).tolist()
    white, mirrored = torch.rand(2, generator=random) < 0.5
    image = opened(path, WHITE if white else tuple(colour))
    part = box(*image.size, least, random)
    views = [tv.pil_to_tensor(image.resize((size, size), Image.Resampling.BICUBIC, box=part)) for size in sizes]
    return [view.flip(-1) if mirrored else view for view in views]


def picked(step: int, count: int, batch: int, seed: int) -> list[int]:
    """The images of a step: one shuffle of all after the other, cut into batches."""
    found: list[int] = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, within = divmod(place, count)
        if within == 0 or not found:
            shuffled = torch.randperm(count, generator=draws(seed, epoch, 2))
        found.append(int(shuffled[within]))
    return found


def views(paths: Sequence[Path], step: int, *, batch: int, sizes: Sequence[int], crop: float, seed: int) -> list[Tensor]:
    """The batch of a step at each of `sizes`: uint8 `[B, 3, size, size]` each, of the same crops."""
    each = [
        augmented(paths[index], sizes, crop, draws(seed, step, 3, place))
        for place, index in enumerate(picked(step, len(paths), batch, seed))
    ]
    return [torch.stack(of_size) for of_size in zip(*each)]
