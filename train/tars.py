"""Tar shards as webdataset names them: a/0001.jpg and a/0001.cls, one after the other, are a sample; a shard is a plain .tar.

A shard is read by its headers first, which say what lies where, and then a sample at a time, by its place. Read are pictures and
labels alone: nothing else that may lie beside them (.pyd, .pkl, ..) is looked at, and no name of a shard is run as a command.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from train import bad
from train.bad import naming

PICTURES = "jpg", "jpeg", "png", "webp"
LABELS = "cls", "json"
MOST_LABEL = 2**20  # bytes of a label's file
MOST_SHARDS = 10**6
MOST_CLASSES = 2**31
SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
BRACES = re.compile(r"\{([^{}]*)\}")
NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
INFO = "_info.json", "info.json"


class Ref(NamedTuple):
    """Where a sample lies. `parts`: first byte and length of its files, by the end of their names."""

    place: int
    number: int
    key: str
    path: Path
    parts: dict[str, tuple[int, int]]

    def __int__(self) -> int:
        """A number that no other sample of these shards has."""
        return (self.place << 32) + self.number

    @property
    def name(self) -> str:
        return f"{self.path}[{self.number}] {ascii(self.key)[1:-1]}"


def expand(pattern: str) -> list[str]:
    """`a-{00..02}.tar` -> a-00.tar, a-01.tar, a-02.tar; `{x,y}` names parts; `::` parts patterns."""
    found = [name for part in pattern.split("::") for name in _expand(part)]
    if twice := [name for name, other in itertools.pairwise(sorted(found)) if name == other]:
        raise ValueError(f"{pattern!r} names {twice[0]} twice: name each shard once")
    return found


def _expand(part: str) -> list[str]:
    pieces = BRACES.split(part)  # plain and braced by turns
    choices = [_choices(piece, part) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    if "{" in "".join(pieces[::2]) or "}" in "".join(pieces[::2]) or prod(map(len, choices)) > MOST_SHARDS:
        raise ValueError(f"shards {part!r}: braces hold 0000..0099 or a,b,c, not one another, and name at most {MOST_SHARDS:,}")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(braced: str, part: str) -> list[str]:
    if not (numbers := NUMBERS.fullmatch(braced)):
        return braced.split(",")
    first, last = numbers.groups()
    if not 0 <= int(last) - int(first) < MOST_SHARDS:
        raise ValueError(f"shards {part!r}: {{{braced}}} must run from the lesser number up, to {MOST_SHARDS:,} shards at most")
    width = len(first) if first.startswith("0") else 0
    return [f"{n:0{width}d}" for n in range(int(first), int(last) + 1)]


class Shards(NamedTuple):
    """The files of a split, how many samples each has where that is told, and how many all have together."""

    paths: list[Path]
    lengths: list[int] | None
    total: int | None


def shards(root: str, split: str, name: str) -> Shards:
    """What a split stands for: shards themselves (`train-{0000..0099}.tar`, `..|100000` with the number of samples), or a name in
    the _info.json of the folder; `name` (what follows wds/) may be the shards, too."""
    chosen = split if ".tar" in split else name if ".tar" in name and not info(root).get(split) else ""
    pattern, bar, told = chosen.partition("|")
    if bar and not (told.isdigit() and int(told)):
        raise ValueError(f"shards {chosen!r}: after | comes the number of samples")
    found = {} if chosen else info(root).get(split)
    if found is None:
        raise ValueError(
            f"split {split!r}: {root} has no _info.json that names it; give shards, for example --train-split "
            "'train-{0000..0099}.tar' --val-split 'val-{00..09}.tar'"
        )
    names = expand(pattern) if chosen else list(found["filenames"])
    lengths = None if chosen else list(found["shard_lengths"])
    if lengths is not None and len(lengths) != len(names):
        raise ValueError(f"{root}: _info.json tells {len(lengths)} shard_lengths of {len(names)} filenames of {split!r}")
    return Shards([_path(root, one) for one in names], lengths, int(told) if bar else None if lengths is None else sum(lengths))


def info(root: str) -> dict[str, Any]:
    """The splits that _info.json tells: {name: {"filenames": [..], "shard_lengths": [..]}}."""
    for file in (Path(root) / name for name in INFO):
        if file.is_file():
            with naming(f"{file}: cannot be read"):
                found = json.loads(file.read_text())["splits"]
                return {k: {name: list(v[name]) for name in ("filenames", "shard_lengths")} for k, v in found.items()}
    return {}


def _path(root: str, name: str) -> Path:
    """The file of a shard: no command, no address."""
    for text in (name, root):
        if SCHEME.match(text):
            raise ValueError(f"shard {text!r}: only files are read, no addresses or commands: fetch or mount it, and give its path")
    path = Path(root) / name
    if path.suffix != ".tar":
        raise ValueError(f"{path}: a shard is a plain .tar, whose samples can be found by their place: unpack it once")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such shard: mend --data-dir or the split")
    return path


def scan(path: Path, place: int = 0) -> list[Ref]:
    """The samples of a shard, by its headers; what lies between them is not read. A shard that is cut short is an error."""
    found: list[Ref] = []
    size = path.stat().st_size
    with (
        naming(f"{path}: cannot be read as a tar shard"),
        path.open("rb", buffering=2048) as file,
        tarfile.open(fileobj=file, mode="r:") as tar,
    ):
        for member in members(tar):
            if member.offset_data + member.size > size:
                raise ValueError(f"it is cut short: {member.name} ends at byte {member.offset_data + member.size} of {size}")
            stem, ending = parted(member.name)
            if not found or found[-1].key != stem or ending in found[-1].parts:
                found.append(Ref(place, len(found), stem, path, {}))
            found[-1].parts[ending] = member.offset_data, member.size
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes what it cannot read for the end
            raise ValueError(f"it is damaged or cut short at byte {tar.offset}")
    return found


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Plain files, as they come."""
    while (member := tar.next()) is not None:
        tar.members = []  # which would hold all of them
        base = member.name.rpartition("/")[2]
        if member.isreg() and not member.issparse() and not base.startswith(".") and "." in base:
            yield member


def parted(name: str) -> tuple[str, str]:
    """`a/b.seg.png` -> `a/b` and `seg.png`: parted at the first dot behind the last slash."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def read(ref: Ref, most: int, classes: int | None = None) -> tuple[Image.Image, int]:
    """The picture, of at most so many pixels, and the label: of its .cls, or `label` in its .json."""
    with naming(f"cannot read sample {ref.name}"), ref.path.open("rb") as file:
        picture = next((ending for ending in PICTURES if ending in ref.parts), None)
        label = next((ending for ending in LABELS if ending in ref.parts), None)
        if picture is None or label is None:
            needs = f"one of {', '.join(PICTURES)} and one of {', '.join(LABELS)}"
            raise ValueError(f"it has {', '.join(ref.parts)}, and needs {needs}")
        number = check_label(_label(_bytes(file, ref.parts[label], MOST_LABEL), label), classes)
        data = _bytes(file, ref.parts[picture], 4 * most + 2**20)
        return bad.picture(io.BytesIO(data), most).convert("RGB"), number


def _label(data: bytes, ending: str) -> object:
    return int(data) if ending == "cls" else json.loads(data)["label"]


def check_label(label: object, classes: int | None) -> int:
    """A label that is the number of a class."""
    last = (classes or MOST_CLASSES) - 1
    if type(label) is not int or not 0 <= label <= last:
        raise ValueError(f"label {label!r}: classes are whole numbers from 0 to {last}")
    return label


def _bytes(file: Any, where: tuple[int, int], most: int) -> bytes:
    start, size = where
    if size > most:
        raise ValueError(f"its header claims {size:,} bytes, above {most:,}")
    file.seek(start)
    data: bytes = file.read(size)
    if len(data) < size:
        raise ValueError("it is cut short")
    return data
