"""Data sets of pictures: folders, and anything that timm's `create_dataset` knows, through timm's transforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import create_dataset
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from train import bad, tars
from train.augment import transform
from train.bad import naming
from train.config import Config
from train.hfids import Hfids
from train.streams import Stream, Tars, Transform


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
    """A folder, a stream, or another data set through timm's factory, with timm's transforms; pictures come normalised."""
    augment = {"color_jitter": config.color_jitter, "auto_augment": config.aa} if training else {}
    change = transform(size, training=training, **augment)
    if config.dataset.partition("/")[0] in ("wds", "hfids"):
        return _stream(config, split, change, training)
    root = Path(config.data_dir or "")
    if config.dataset == "folder":
        _check_folder(root, split)
    name = "" if config.dataset == "folder" else config.dataset
    try:
        source = create_dataset(name, root=str(root), split=split, is_training=training, batch_size=config.batch_size)
    except (OSError, RuntimeError, AssertionError) as error:
        raise ValueError(f"data set {config.dataset!r} in {root}: {error}") from None
    if isinstance(source, IterableDataset):
        raise ValueError(f"data set {config.dataset!r} is a stream; of streams only wds/.. and hfids/.. are read")
    return Strict(source, change, config.max_pixels)


def _stream(config: Config, split: str, change: Transform, training: bool) -> Stream:
    """Tar shards, or what `datasets` streams; a number of epochs needs to know how many samples there are."""
    kind, _, name = config.dataset.partition("/")
    root, options = config.data_dir or "", (change, config.max_pixels, config.num_classes)
    found: Stream = Tars(tars.shards(root, split, name), *options) if kind == "wds" else Hfids(name, root, split, *options)
    if training and config.steps is None and found.length is None:
        told = "_info.json with shard_lengths, or the number behind the shards ('train-{0000..0099}.tar|100000')"
        raise ValueError(f"{config.dataset!r} does not tell how many samples there are: give --steps, or {told}")
    return found


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
