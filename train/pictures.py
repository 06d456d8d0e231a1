"""Data sets of pictures: folders, and anything that timm's `create_dataset` knows, through timm's transforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import create_dataset
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from train import bad
from train.augment import transform
from train.bad import naming
from train.config import Config


class Strict(Dataset[tuple[Tensor, int]]):
    """A data set of pictures that says which one is broken; timm's own would return the next one, with its label.

    The source opens files and knows labels; pictures of at most `most` pixels are decoded and transformed here.
    """

    def __init__(self, source: Any, transform: Callable[[Image.Image], Tensor], most: int) -> None:
        self.source, self.transform, self.most = source, transform, most
        if hasattr(source, "loader"):  # torchvision's folders
            source.loader = self._opened

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with naming(lambda: f"cannot read picture {self._name(index)}"):
            picture, label = self._found(index)
        return self.transform(picture), int(label)

    def _found(self, index: int) -> tuple[Image.Image, Any]:
        reader = getattr(self.source, "reader", None)
        if reader is None:
            picture, label, *_ = self.source[index]
            return picture.convert("RGB"), label
        file, label, *_ = reader[index]
        with file:
            return bad.picture(file, self.most).convert("RGB"), label

    def _opened(self, path: str) -> Image.Image:
        with naming(f"cannot read picture {path}"), open(path, "rb") as file:
            return bad.picture(file, self.most).convert("RGB")

    def _name(self, index: int) -> str:
        known = getattr(self.source, "filename", None)
        return f"{index}" if known is None else str(known(index, absolute=True))


def pictures(config: Config, split: str, size: tuple[int, ...], training: bool = False) -> Dataset[Any]:
    """A folder or named data set through timm's factory and transforms; pictures come normalised."""
    root = Path(config.data_dir or "")
    if config.dataset == "folder":
        _check_folder(root, split)
    name = "" if config.dataset == "folder" else config.dataset
    try:
        source = create_dataset(name, root=str(root), split=split, is_training=training, batch_size=config.batch_size)
    except (OSError, RuntimeError, AssertionError) as error:
        raise ValueError(f"data set {config.dataset!r} in {root}: {error}") from None
    if isinstance(source, IterableDataset):
        raise ValueError(f"data set {config.dataset!r} is a stream, whose pictures have no number: give one that can be indexed")
    augment = {"color_jitter": config.color_jitter, "auto_augment": config.aa} if training else {}
    return Strict(source, transform(size, training=training, **augment), config.max_pixels)


def _check_folder(root: Path, split: str) -> None:
    """An image folder must exist, and each of its class folders must hold pictures."""
    names = {"validation": ("validation", "val"), "val": ("val", "validation")}.get(split, (split,))
    folder = next((root / name for name in names if (root / name).is_dir()), root)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; give --data-dir with train/ and val/, one folder a class")
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if not classes:
        raise ValueError(f"{folder}: no class folders in it")
    for path in classes:
        if not any(file.suffix.lower() in (".png", ".jpg", ".jpeg") for file in path.rglob("*")):
            raise ValueError(f"{path}: this class has no pictures (.png, .jpg, .jpeg)")
