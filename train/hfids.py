"""`hfids/..`: pictures that the library `datasets` streams (parquet, arrow, folders of pictures), from a folder or the hub.

What the library gives is pictures as they are stored, in order, shard by shard. What came before in an epoch is read again where a
run goes on, not decoded; a shuffle buffer of the library would lose what it holds.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from train import bad
from train.bad import naming
from train.readers.need import need
from train.streams import Stream, Transform, permuted
from train.tars import check_label

BUILDERS = "parquet", "arrow", "imagefolder"  # others unpickle, or have another reader here
BLOCK = 1000  # pictures that are held, as they are stored, and shuffled among themselves
MOST_SHARDS = 1024


class Held(NamedTuple):
    """A sample that was read and not decoded."""

    place: int
    number: int
    picture: dict[str, Any]
    label: Any

    def __int__(self) -> int:
        return (self.place << 32) + self.number

    @property
    def name(self) -> str:
        return f"shard {self.place} [{self.number}]"


class Hfids(Stream):
    """Pictures out of the column `image` and labels out of `label`."""

    def __init__(self, name: str, root: str, split: str, transform: Transform, most: int, classes: int | None = None) -> None:
        self.transform, self.most, self.classes = transform, most, classes
        self.rows, self.length = opened(name, root, split)
        self.shards = min(self.rows.num_shards, MOST_SHARDS)

    def __getstate__(self) -> dict[str, Any]:
        """What a worker gets: it reads what it is given."""
        return {**self.__dict__, "rows": None}

    def count(self) -> int:
        if self.length is None:
            self.length = sum(1 for _ in self.walk())
        return self.length

    def walk(self, first: int = 0, seed: int | None = None, epoch: int = 0) -> Iterator[Held]:
        places = range(self.shards) if seed is None else permuted(range(self.shards), seed, epoch)
        keys = (key for place in places for key in self._shard(place))
        if seed is None:
            yield from itertools.islice(keys, first, None)
            return
        for number in itertools.count():
            block = list(itertools.islice(keys, BLOCK))
            if not block:
                return
            if first < len(block):
                yield from permuted(block, seed, epoch, number)[first:]
            first = max(0, first - len(block))

    def _shard(self, place: int) -> Iterator[Held]:
        rows = self.rows.shard(num_shards=self.shards, index=place)
        return (Held(place, number, row["image"], row["label"]) for number, row in enumerate(rows))

    def read(self, key: Held) -> tuple[Image.Image, int]:
        with naming(f"cannot read sample {key.name}"):
            return bad.picture(self._file(key.picture), self.most).convert("RGB"), check_label(key.label, self.classes)

    def _file(self, stored: dict[str, Any]) -> Any:
        """The bytes of a picture, or of the file that it is."""
        data = stored["bytes"]
        if data is None:
            path = Path(stored["path"])
            _check_bytes(path.stat().st_size, self.most)
            data = path.read_bytes()
        _check_bytes(len(data), self.most)
        return io.BytesIO(data)


def _check_bytes(size: int, most: int) -> None:
    if size > 4 * most + 2**20:
        raise ValueError(f"has {size:,} bytes, more than {most:,} pixels take: raise --max-pixels if they are true")


def opened(name: str, root: str, split: str) -> tuple[Any, int | None]:
    """The rows of a split, their pictures as they are stored, and how many there are, if that is told."""
    datasets = need("datasets", "stream")
    folder = Path(root) / name
    given = {"path": name, "cache_dir": root}  # a name of the hub
    if name in BUILDERS:
        given = {"path": name, "data_dir": root}
    elif folder.is_dir():
        given = {"path": str(folder)}
    try:
        builder = datasets.load_dataset_builder(**given)
        if builder.name not in BUILDERS:
            raise ValueError(f"{builder.name} is not read, but {', '.join(BUILDERS)} (tar shards: --dataset wds/..)")
        rows = builder.as_streaming_dataset(split=split)
    except (OSError, ValueError) as error:
        raise ValueError(f"data set hfids/{name} in {root}, split {split!r}: {str(error).splitlines()[0]}") from None
    return _columns(rows, datasets, name), _told(builder, split)


def _columns(rows: Any, datasets: Any, name: str) -> Any:
    """Rows of `image` and `label`."""
    rows = rows if rows.features is not None else rows._resolve_features()
    if not {"image", "label"} <= set(rows.features):
        raise ValueError(f"data set hfids/{name}: columns image and label are needed, and it has {', '.join(rows.features)}")
    return rows.select_columns(["image", "label"]).cast_column("image", datasets.Image(decode=False))


def _told(builder: Any, split: str) -> int | None:
    """How many rows a split has, as its card says."""
    known = (builder.info.splits or {}).get(split)
    return int(known.num_examples) if known is not None and known.num_examples else None
