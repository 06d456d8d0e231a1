"""Data sets as batches: what is drawn here, folders, anything timm or torchvision knows. Order is a function of seed and step."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from train.arrows import Arrows
from train.cases import Case, case, trained
from train.config import DRAWN, Config
from train.glyphs import Glyphs
from train.glyphs.views import Views
from train.moving import Moving
from train.pictures import pictures
from train.readers import ClipFolder, VolumeFolder
from train.sift import Batch, Gaps, Ledger, Loader, Missing, Sifted
from train.solids import Solids

MOST = 4 * 10**9  # bytes of training inputs in memory


class Drawn(Dataset[Batch]):
    """Inputs held in memory: `[N, C, ..]`, labels `[N]`, and spacings `[N, A]` where samples have their own.

    `missing` are those whose files are bad; what lies in their place is never given out, and `ledger` counts them.
    """

    def __init__(self, images: Tensor, labels: Tensor, *where: Tensor) -> None:
        self.images, self.labels, self.where = images, labels, where
        self.missing: dict[int, Missing] = {}
        self.ledger: Ledger | None = None

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

    @classmethod
    def read(cls, data: Dataset[Any]) -> Drawn:
        """Read every sample of a data set, once."""
        samples, missing, first = list[Any](), dict[int, Missing](), None
        for i in range(len(data)):  # type: ignore[arg-type]
            samples.append(data[i])
            if isinstance(samples[i], Missing):
                missing[i] = samples[i]
            elif first is None:
                first = samples[i]
                _check_cache(first[0].numel() * first[0].element_size() * len(data))  # type: ignore[arg-type]
        if first is None:
            raise ValueError(f"no file can be read; the first: {missing[0].why}")
        found = cls(*collate([first if i in missing else sample for i, sample in enumerate(samples)]))
        found.missing = missing
        return found

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return tuple(part[index] for part in (self.images, self.labels, *self.where))

    def __getitems__(self, indices: list[int]) -> Batch | Gaps:
        missing = [self.missing[i] for i in indices if i in self.missing]
        at = torch.tensor([i for i in indices if i not in self.missing], dtype=torch.long)
        batch = tuple(part[at] for part in (self.images, self.labels, *self.where))
        return Gaps(batch if len(at) else None, missing) if missing else batch


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


def collate(samples: Any) -> Any:
    """Batches pass through; lists of (image, label), or (image, label, spacing), are stacked, those that are not missing."""
    if isinstance(samples, (tuple, Gaps)):
        return samples
    if missing := [sample for sample in samples if isinstance(sample, Missing)]:
        whole = [sample for sample in samples if not isinstance(sample, Missing)]
        return Gaps(collate(whole) if whole else None, missing)
    images, labels, *where = zip(*samples)
    return torch.stack(list(images)), torch.tensor([int(label) for label in labels]), *(torch.stack(list(w)) for w in where)


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
        begin = {"start": "random" if training else "middle", "max_pixels": config.max_pixels}
        return ClipFolder(root, count=at.size[0], fps=at.fps, size=at.size[1:], **begin)  # type: ignore[arg-type]
    if config.dataset == "volumes":
        finer = at.spacing != trained(config).spacing  # what only files of finer voxels can show
        distances = at.spacing if config.spacing else None
        given = root, at.size, distances, finer, config.max_pixels
        return _volumes_once(training and config.max_bad > 0, *given) if config.cache else _volumes(*given)
    return pictures(config, split, at.size, training)


def _volumes(root: Path, size: Any, spacing: Any, exact: bool, most: int) -> Dataset[Any]:
    """Volumes from files, each with its spacing."""
    return VolumeFolder(root, size=size, spacing=spacing, exact=exact, spaced=True, max_voxels=most)


@functools.lru_cache(maxsize=8)
def _volumes_once(gaps: bool, *given: Any) -> Dataset[Any]:
    """The same, read into memory and kept for the next that needs them: the next rule, the next model."""
    return Drawn.read(Sifted(_volumes(*given)) if gaps else _volumes(*given))


def training_set(config: Config) -> Dataset[Any]:
    """What the run trains on: glyphs of each test, zoom with scale augmentation; any other data set at the training size."""
    if config.dataset not in DRAWN:
        found, ledger = stored(config, trained(config), split=config.train_split, training=True), Ledger(config.max_bad)
        if not isinstance(found, Drawn):
            return Sifted(found, ledger)
        found = copy.copy(found)
        found.ledger = ledger
        return found
    if config.cache and config.dataset != "arrows":
        known = (
            "dataset",
            "train_split",
            "tests",
            "img_size",
            "train_samples",
            "classes",
            "seed",
            "question",
            "frames",
            "fps",
            "rest",
        )
        return _drawn_once(Config(**{name: getattr(config, name) for name in known}))  # what the inputs depend on
    parts = _training_parts(config)
    return parts[0] if len(parts) == 1 else Joined(parts)


def _training_parts(config: Config) -> list[Any]:
    options: dict[str, Any] = {"split": config.train_split, "samples": config.train_samples}
    if config.dataset != "glyphs":
        return [drawn(config, trained(config), **options)]
    if config.rest:
        shown = {"split": config.train_split, "classes": config.characters, "seed": config.seed + 1}
        length = config.train_samples * len(config.measured_tests)
        return [Views(size=config.size[0], rest=config.rest, length=length, **shown)]
    return [drawn(config, case(config, test, 1), augment=test == "zoom", **options) for test in config.measured_tests]


@functools.lru_cache(maxsize=1)
def _drawn_once(config: Config) -> Drawn:
    """The training inputs, kept for the next run of this process that needs the same."""
    parts = _training_parts(config)
    _check_cache(prod(parts[0].batch([0])[0].shape) * sum(len(part) for part in parts))
    return Drawn.draw(parts)


def _check_cache(size: int) -> None:
    """Whether so many bytes may be held."""
    if size > MOST:
        raise ValueError(f"cache of {size / 1e9:.1f} GB, at most {MOST / 1e9:.0f}: lower train_samples, or leave cache out")


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


def loader(data: Dataset[Any], batches: Sequence[list[int]] | Iterator[list[int]], workers: int = 0) -> Loader:
    """Batches of these indices; its own generator, so that it draws nothing from the global one.

    A bad file is an error, unless the data set, or what it is `Seeded` from, has a ledger that allows some.
    """
    ledger = getattr(data, "ledger", None) or getattr(getattr(data, "source", None), "ledger", None) or Ledger()
    workers = 0 if isinstance(data, (Drawn, Arrows)) else workers
    by_batch = hasattr(data.dataset if isinstance(data, Subset) else data, "__getitems__")
    return Loader(
        data if by_batch else Sifted(data),
        ledger,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator(),
        persistent_workers=workers > 0,
    )
