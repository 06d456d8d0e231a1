"""Randomness as a function of where it is drawn: the seed, and the step, or the epoch and the sample.

Nothing is carried from one draw to the next. So what a step draws depends neither on the loader's workers nor on whether the run
was interrupted before it, and a checkpoint holds no state of a generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, tee
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from train import streams
from train.config import Config
from train.data import Batch, loader, order

STEP, SAMPLE, SIZE = 5, 6, 7  # kinds of draws, apart from each other


def number(seed: int, *where: int) -> int:
    """A seed for one place in a run, from 0 to 2^61 - 2."""
    mixed = seed
    for index in where:
        mixed = (mixed * 1_000_003 + index + 1) % (2**61 - 1)
    return mixed


def draws(seed: int, *where: int) -> torch.Generator:
    """The generator of one place in a run: a function of the seed and the place (step, image), and of nothing before it."""
    return torch.Generator().manual_seed(number(seed, *where))


def seed_all(seed: int, *where: int) -> None:
    """The same for the generators that models, mixup and augmentations share: Python's, NumPy's and torch's on all devices."""
    mixed = number(seed, *where)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


class Seeded(Dataset[Any]):
    """A data set read sample by sample, by (epoch, index): its augmentations are drawn from the seed and these two alone."""

    def __init__(self, source: Any, seed: int) -> None:
        self.source, self.seed = source, seed

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        seed_all(self.seed, key[0], int(key[1]), SAMPLE)
        return self.source[key[1]]


def batches(data: Any, config: Config, *, start: int, end: int, rank: int = 0, world: int = 1) -> Iterator[tuple[list[int], Batch]]:
    """Batches `start` to `end` of a rank, each with the indices of its samples. What is drawn here knows no augmentation but that
    of its index, and comes batch by batch; other data sets are read as `Seeded`."""
    if isinstance(stream := getattr(data, "source", None), streams.Stream):
        span = {"start": start, "end": end, "rank": rank, "world": world}
        told, asked = tee(streams.order(stream, config.batch_size, config.seed, **span))
        names = ([key.name for _, key in batch] for batch in told)
        return zip(names, loader(Seeded(data, config.seed), asked, config.workers))  # type: ignore[arg-type]
    given = len(data), config.batch_size, config.seed, end, rank, world
    if hasattr(data, "__getitems__"):
        return zip(islice(order(*given), start, None), loader(data, islice(order(*given), start, None), config.workers))
    each = len(data) // (config.batch_size * world)
    keyed = ([(step // each, index) for index in batch] for step, batch in enumerate(order(*given)) if step >= start)
    return zip(islice(order(*given), start, None), loader(Seeded(data, config.seed), keyed, config.workers))  # type: ignore[arg-type]
