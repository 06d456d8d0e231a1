"""Streams: data sets that are read shard after shard, and need not fit on a disk or be counted before training begins.

`wds/..` are tar shards, `hfids/..` what the library `datasets` streams. The order is a function of the seed and the epoch: shards
are shuffled, then the samples of as many neighbours as hold SHUFFLED of them. The main process finds out which sample comes when,
which takes headers alone, and the loader's workers read it. So the order depends neither on the number of workers nor on whether
the run was interrupted, every sample is read once an epoch (but for the last short batch, as in other data sets), and processes
share each batch. timm's own readers give each worker shards of its own, fill up an epoch with samples that came before, and pass
over what is broken.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from train import tars
from train.tars import Ref, Shards

SHUFFLED = 8192  # samples that are shuffled among themselves, at least
Transform = Callable[[Image.Image], Tensor]


class Stream(Dataset[Any], ABC):
    """Samples that come in an order: `walk` tells which, `stream[key]` reads one. `length`: how many there are, if that is told."""

    length: int | None = None
    transform: Transform

    def __len__(self) -> int:
        return self.length or 0

    @abstractmethod
    def count(self) -> int:
        """How many samples there are; where that is not told, it takes reading."""

    @abstractmethod
    def walk(self, first: int = 0, seed: int | None = None, epoch: int = 0) -> Iterator[Any]:
        """Keys of the samples from number `first` of an epoch on; as they lie, where there is no seed."""

    @abstractmethod
    def read(self, key: Any) -> tuple[Image.Image, int]:
        """A sample's picture and label; a BadFile names it."""

    def __getitem__(self, key: Any) -> tuple[Tensor, int]:
        picture, label = self.read(next(self.walk(key)) if isinstance(key, int) else key)
        return self.transform(picture), label


class Tars(Stream):
    """Tar shards of pictures."""

    def __init__(self, found: Shards, transform: Transform, most: int, classes: int | None = None) -> None:
        self.paths, self.told, self.length = found.paths, found.lengths is not None, found.total
        self.transform, self.most, self.classes = transform, most, classes
        self.lengths: dict[int, int] = dict(enumerate(found.lengths or []))

    def count(self) -> int:
        for place in range(len(self.paths)):
            if place not in self.lengths:
                self._scan(place)
        return sum(self.lengths.values())

    def walk(self, first: int = 0, seed: int | None = None, epoch: int = 0) -> Iterator[Ref]:
        places = range(len(self.paths)) if seed is None else permuted(range(len(self.paths)), seed, epoch)
        for number, group in enumerate(self._groups(places)):
            size = sum(self.lengths[place] for place in group)
            if first < size:
                found = [ref for place, kept in group.items() for ref in (kept or self._scan(place))]
                yield from (found if seed is None else permuted(found, seed, epoch, number))[first:]
            first = max(0, first - size)

    def _groups(self, places: Sequence[int]) -> Iterator[dict[int, list[Ref]]]:
        """Neighbouring shards of SHUFFLED samples together, with those that had to be read to be counted."""
        group: dict[int, list[Ref]] = {}
        for place in places:
            group[place] = [] if place in self.lengths else self._scan(place)
            if sum(self.lengths[one] for one in group) >= SHUFFLED:
                yield group
                group = {}
        if group:
            yield group

    def _scan(self, place: int) -> list[Ref]:
        found = tars.scan(self.paths[place], place)
        if self.lengths.setdefault(place, len(found)) != len(found):
            who = "_info.json tells" if self.told else "there were"
            raise ValueError(f"{self.paths[place]}: holds {len(found)} samples, and {who} {self.lengths[place]}: mend it")
        return found

    def read(self, key: Ref) -> tuple[Image.Image, int]:
        return tars.read(key, self.most, self.classes)


class Picked(Dataset[Any]):
    """Samples of a stream by their numbers, ascending, for tests; they come in this order, and none for another."""

    def __init__(self, stream: Stream, numbers: Sequence[int]) -> None:
        self.stream, self.numbers = stream, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, key: Any) -> tuple[Tensor, int]:
        return self.stream[self.numbers[key] if isinstance(key, int) else key]

    def keyed(self, batches: Sequence[Sequence[int]]) -> Iterator[list[Any]]:
        """The keys of batches of places, which together are all places in their order."""
        wanted = set(self.numbers)
        keys = (key for number, key in enumerate(self.stream.walk()) if number in wanted)
        for batch in batches:
            yield list(itertools.islice(keys, len(batch)))


def permuted(things: Sequence[Any], *where: int) -> list[Any]:
    """Things in an order that is a function of the place in a run."""
    mixed = 0
    for number in where:
        mixed = (mixed * 1_000_003 + number + 1) % (2**61 - 1)
    return [things[i] for i in torch.randperm(len(things), generator=torch.Generator().manual_seed(mixed)).tolist()]


def order(
    stream: Stream, batch: int, seed: int, *, start: int, end: int, rank: int = 0, world: int = 1
) -> Iterator[list[tuple[int, Any]]]:
    """Batches `start` to `end` of one rank, as (epoch, key) each: epochs cut into global batches, the last short one left out."""
    whole, epoch, within = batch * world, 0, 0
    if start:
        epoch, within = divmod(start, _filled(stream.count(), whole))
    while start < end:
        begun, keys = start, stream.walk(within * whole, seed, epoch)
        while start < end and len(found := list(itertools.islice(keys, whole))) == whole:
            yield [(epoch, key) for key in found[rank * batch : (rank + 1) * batch]]
            start += 1
        if start == begun and start < end:
            _filled(within * whole + len(found), whole)
        epoch, within = epoch + 1, 0


def _filled(count: int, whole: int) -> int:
    """How many batches there are in an epoch."""
    if count < whole:
        raise ValueError(f"{count} training pictures are fewer than one batch of {whole}: lower --batch-size")
    return count // whole
