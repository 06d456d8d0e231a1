"""Data sets as batches: what is drawn here, folders, anything timm or torchvision knows. Order is a function of seed and step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.data import create_dataset, create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.arrows import Arrows
from train.cases import Case, case, trained
from train.config import DRAWN, Config
from train.glyphs import Glyphs
from train.moving import Moving
from train.readers import ClipFolder, VolumeFolder
from train.solids import Solids

Batch = tuple[Tensor, Tensor]
MOST = 4 * 10**9  # bytes of training inputs in memory


class Drawn(Dataset[Batch]):
    """Inputs held in memory: uint8 `[N, C, ..]` and labels `[N]`."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    @classmethod
    def draw(cls, parts: Sequence[Any], chunk: int = 500) -> Drawn:
        """Draw everything in the given sets, once."""
        first = parts[0].batch([0])[0]  # [1, C, ..]
        count, done = sum(len(part) for part in parts), 0
        images, labels = first.new_empty((count, *first.shape[1:])), torch.empty(count, dtype=torch.long)
        for part in parts:
            for start in range(0, len(part), chunk):
                picked = range(start, min(start + chunk, len(part)))
                here = slice(done, done := done + len(picked))
                images[here], labels[here] = part.batch(picked)
        return cls(images, labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        at = torch.tensor(indices)
        return self.images[at], self.labels[at]


class Joined(Dataset[Batch]):
    """Several glyph sets as one, a batch drawn set by set."""

    def __init__(self, parts: Sequence[Glyphs]) -> None:
        self.parts, self.each = parts, len(parts[0])

    def __len__(self) -> int:
        return self.each * len(self.parts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.parts[index // self.each][index % self.each]

    def __getitems__(self, indices: list[int]) -> Batch:
        at = torch.tensor(indices)
        part, within = at // self.each, at % self.each
        images, labels = torch.empty(len(at), 3, *self.parts[0].size, dtype=torch.uint8), torch.empty(len(at), dtype=torch.long)
        for k in part.unique().tolist():
            images[part == k], labels[part == k] = self.parts[k].batch(within[part == k].tolist())
        return images, labels


class Strict(Dataset[tuple[Tensor, int]]):
    """A data set of pictures that says which one is broken; timm's own would return the next one, with its label."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            if not hasattr(self.source, "reader"):
                image, label = self.source[index]
                return image, int(label)
            file, label = self.source.reader[index]
            return self.source.transform(Image.open(file).convert("RGB")), int(label)
        except (OSError, ValueError, SyntaxError) as error:
            name = self.source.filename(index) if hasattr(self.source, "filename") else f"picture {index}"
            raise ValueError(f"cannot read {name}: {error}") from None


def collate(samples: Any) -> Batch:
    """Batches pass through; lists of (image, label) are stacked."""
    if isinstance(samples, tuple):
        return samples
    images, labels = zip(*samples)
    return torch.stack(list(images)), torch.tensor([int(label) for label in labels])


def _glyphs(config: Config, at: Case, **options: Any) -> Glyphs:
    return Glyphs(test=at.test, size=at.size, field=min(config.size), classes=config.characters, **options)


def _arrows(config: Config, at: Case, **options: Any) -> Arrows:
    return Arrows(size=at.size, **options)


def _moving(config: Config, at: Case, **options: Any) -> Moving:
    shown = {"frames": at.size[0], "fps": at.fps, "size": at.size[1:], "field": min(config.size[1:])}
    test = "canvas" if at.test == "canvas" else "zoom"
    return Moving(test=test, question=config.question, classes=config.characters, **shown, **options)


def _solids(config: Config, at: Case, **options: Any) -> Solids:
    return Solids(size=at.size, spacing=at.spacing, classes=config.characters, **options)


MAKERS: dict[str, Callable[..., Any]] = {"glyphs": _glyphs, "arrows": _arrows, "moving": _moving, "solids": _solids}


def drawn(config: Config, at: Case, *, split: str, samples: int, **options: Any) -> Any:
    """The data set of this run, drawn here, as a case says; the seed of training inputs is the run's, that of tests always 0."""
    seed = config.seed + 1 if split == "train" else 0
    return MAKERS[config.dataset](config, at, split=split, length=samples, seed=seed, **options)


def stored(config: Config, at: Case, *, split: str, training: bool = False) -> Dataset[Any]:
    """The data set of this run, read from files."""
    root = Path(config.data_dir or "") / split
    if config.dataset == "clips":
        start = "random" if training else "middle"
        return ClipFolder(root, count=at.size[0], fps=at.fps, size=at.size[1:], start=start, seed=config.seed)
    if config.dataset == "volumes":
        return VolumeFolder(root, size=at.size)
    return pictures(config, split, at.size, training)


def training_set(config: Config) -> Dataset[Any]:
    """What the run trains on: glyphs of each test, zoom with scale augmentation; any other data set at the training size."""
    if config.dataset not in DRAWN:
        return stored(config, trained(config), split=config.train_split, training=True)
    if config.cache and config.dataset != "arrows":
        known = ("dataset", "train_split", "tests", "img_size", "train_samples", "classes", "seed", "question", "frames", "fps")
        return _drawn_once(Config(**{name: getattr(config, name) for name in known}))  # what the inputs depend on
    parts = _training_parts(config)
    return parts[0] if len(parts) == 1 else Joined(parts)


def _training_parts(config: Config) -> list[Any]:
    options: dict[str, Any] = {"split": config.train_split, "samples": config.train_samples}
    if config.dataset != "glyphs":
        return [drawn(config, trained(config), **options)]
    return [drawn(config, case(config, test, 1), augment=test == "zoom", **options) for test in config.measured_tests]


@functools.lru_cache(maxsize=1)
def _drawn_once(config: Config) -> Drawn:
    """The training inputs, kept for the next run of this process that needs the same."""
    parts = _training_parts(config)
    size = prod(parts[0].batch([0])[0].shape) * sum(len(part) for part in parts)
    if size > MOST:
        raise ValueError(f"cache of {size / 1e9:.1f} GB, at most {MOST / 1e9:.0f}: lower train_samples, or leave cache out")
    return Drawn.draw(parts)


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
    augment = {"color_jitter": config.color_jitter, "auto_augment": config.aa} if training else {}
    source.transform = create_transform((3, *size), is_training=training, crop_pct=1.0, **augment)
    return Strict(source)


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


def class_count(config: Config) -> int | None:
    """Number of classes: what the run says, or else what the data tells; None for the model's own."""
    if config.num_classes is not None:
        return config.num_classes
    if config.dataset in DRAWN:
        return len(answers(config))
    if config.dataset in ("folder", "clips", "volumes"):
        return len({path.name for path in (Path(config.data_dir or "") / config.train_split).iterdir() if path.is_dir()})
    return None


def answers(config: Config) -> Sequence[str]:
    """What the labels of a drawn data set stand for."""
    if config.dataset == "moving":
        return Moving("train", question=config.question, classes=config.characters).answers
    return config.characters or ("up", "right", "down", "left")


def order(count: int, batch: int, seed: int, steps: int, rank: int = 0, world: int = 1) -> Iterator[list[int]]:
    """Index batches of one rank: a fresh permutation an epoch, cut into global batches; the last short one is left out."""
    per_epoch = count // (batch * world)
    if per_epoch < 1:
        raise ValueError(f"{count} training pictures are fewer than one batch of {batch * world}: lower --batch-size")
    for step in range(steps):
        epoch, within = divmod(step, per_epoch)
        if within == 0:
            shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        start = (within * world + rank) * batch
        yield shuffled[start : start + batch].tolist()


def loader(data: Dataset[Any], batches: Sequence[list[int]] | Iterator[list[int]], workers: int = 0) -> DataLoader[Any]:
    """A DataLoader over given index batches; its own generator, so that it draws nothing from the global one."""
    workers = 0 if isinstance(data, (Drawn, Arrows)) else workers
    return DataLoader(
        data,
        batch_sampler=list(batches),
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator(),
        persistent_workers=workers > 0,
    )
