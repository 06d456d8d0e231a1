"""Tensors that lie by rows on several processes, in files: each process writes its rows, and any number of them read these.

Process k of n writes `NAME.k-of-n.safetensors`: its rows of each sharded tensor, and, on the first, the tensors that every process
has whole. The header of the file says where its rows belong, as JSON: `{"rows": {"blocks.0.attn.qkv.weight": [96, 192]}}`, first
row and number of rows of the whole. So a run goes on with another number of processes, or with one, and each of them reads the
rows that it needs and no others.

PyTorch's own sharded checkpoints (torch.distributed.checkpoint) are not used: their index, `.metadata`, is a pickle, and reading a
pickle may run what is in it. Of files, nothing here is read but JSON, safetensors and what `torch.load(weights_only=True)` takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

ROWS = "rows"  # the key of a file's header


def file_name(name: str, rank: int, world: int) -> str:
    return f"{name}.{rank + 1}-of-{world}.safetensors"


def local(value: Tensor) -> Tensor:
    """The rows of this process; all of them, where it has all."""
    return value.to_local() if isinstance(value, DTensor) else value


def span(count: int, rank: int, world: int) -> tuple[int, int]:
    """First row, and the one after the last, of `count` rows on process `rank`: as torch.chunk deals them out."""
    most = -(-count // world)
    return min(rank * most, count), min((rank + 1) * most, count)


def mine(held: Mapping[str, Tensor], rank: int, world: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What this process writes of `held`, and the header of its file."""
    tensors: dict[str, Tensor] = {}
    rows: dict[str, list[int]] = {}
    for name, value in held.items():
        if isinstance(value, DTensor):
            start, stop = span(len(value), rank, world)
            if stop > start:
                tensors[name], rows[name] = value.to_local(), [start, len(value)]
        elif rank == 0:
            tensors[name] = value
    return tensors, {ROWS: json.dumps(rows)}


class Piecewise:
    """A tensor in one or several files, read by rows: `piecewise[3:8]`, and `piecewise[:]` is the whole."""

    def __init__(self, name: str, parts: Iterable[tuple[int, Any]], count: int | None) -> None:
        """`parts`: first row, and the open file that has the rows from there on; a `count` of None is a tensor that lies whole."""
        self.name, self.parts, self.count = name, sorted(parts, key=lambda part: part[0]), count
        self.slices = [(start, file.get_slice(name)) for start, file in self.parts]
        self.shape = torch.Size(self.slices[0][1].get_shape())
        if count is not None:
            self._check()
            self.shape = torch.Size((count, *self.shape[1:]))

    def _check(self) -> None:
        """Whether the rows are all there, each once."""
        reached = 0
        for start, found in self.slices:
            if start != reached or tuple(found.get_shape()[1:]) != self.shape[1:]:
                raise ValueError(f"{self.name} has rows from {start}, where those from {reached} are missing")
            reached += found.get_shape()[0]
        if reached != self.count:
            raise ValueError(f"{self.name} has {reached} of {self.count} rows")

    def __getitem__(self, rows: slice) -> Tensor:
        if not self.shape:
            return self.parts[0][1].get_tensor(self.name)  # a number
        start, stop, _ = rows.indices(self.shape[0])
        found = []
        for at, part in self.slices:
            low, high = max(start - at, 0), min(stop - at, part.get_shape()[0])
            if low < high:
                found.append(part[low:high])
        if not found:
            return self.slices[0][1][0:0]
        return found[0] if len(found) == 1 else torch.cat(found)


def load(files: Iterable[Path]) -> dict[str, Piecewise]:
    """The tensors that lie in files which belong together, by name; what is not whole is a ValueError."""
    parts: dict[str, list[tuple[int, Any]]] = {}
    counts: dict[str, int | None] = {}
    for path in files:
        file = safe_open(path, framework="pt")
        rows = json.loads((file.metadata() or {}).get(ROWS, "{}"))
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            start, count = rows.get(name, (0, None))
            parts.setdefault(name, []).append((start, file))
            if counts.setdefault(name, count) != count:
                raise ValueError(f"{name} has {count} rows in {path.name}, and {counts[name]} in another file")
    return {name: Piecewise(name, found, counts[name]) for name, found in parts.items()}


UNREADABLE = OSError, ValueError, RuntimeError, TypeError, SafetensorError
