"""NumPy's files: shape and type are read and checked before anything else is, and nothing is unpickled."""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from train.bad import check_size


def header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array in an open .npy file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    if kind.hasobject:
        raise ValueError("it holds Python objects, which are pickled and not read")
    return shape, kind


class Packed:
    """An .npz file."""

    def __init__(self, path: Path) -> None:
        self.archive = zipfile.ZipFile(path)

    def __enter__(self) -> Packed:
        return self

    def __exit__(self, *_: object) -> None:
        self.archive.close()

    @property
    def names(self) -> list[str]:
        return [name.removesuffix(".npy") for name in self.archive.namelist()]

    def read(self, name: str, most: int, unit: str = "pixels", axes: int | None = None) -> np.ndarray:
        """An array of at most `most` numbers along its first `axes`, which are as many as the archive says it holds."""
        if name not in self.names:
            raise ValueError(f"it holds no {name}, but {', '.join(self.names) or 'nothing'}")
        with self.archive.open(f"{name}.npy") as file:
            shape, kind = header(file)
            check_size(shape[:axes], most, unit)
            if prod(shape) * kind.itemsize > self.archive.getinfo(f"{name}.npy").file_size:
                raise ValueError(f"{name} claims {list(shape)} of {kind}, more than the archive holds")
        with self.archive.open(f"{name}.npy") as file:
            found: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return found
