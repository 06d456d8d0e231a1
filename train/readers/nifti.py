"""NIfTI files, through nibabel."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from train.readers.need import need
from train.readers.space import Volume, canonical

NIFTI = ".nii", ".nii.gz"
MILLIMETRES = {"meter": 1000.0, "mm": 1.0, "micron": 0.001, "unknown": 1.0}


def read_nifti(path: Path) -> Volume:
    """A .nii or .nii.gz file, scaled as its header says; a fourth axis is channels."""
    nib = need("nibabel", "volume")
    broken = (nib.filebasedimages.ImageFileError, nib.spatialimages.HeaderDataError, OSError, EOFError, ValueError, zlib.error)
    try:
        image = nib.load(path)
        kind, unit = image.get_data_dtype(), image.header.get_xyzt_units()[0]
        data = None if kind.kind in "Vc" else np.asarray(image.dataobj, np.float32)
    except broken as error:
        raise ValueError(f"{path}: cannot be read as NIfTI: {error}") from None
    if data is None:
        raise ValueError(f"{path}: holds {kind} values, not one real number a voxel")
    scale = np.diag([*[MILLIMETRES[unit]] * 3, 1.0])
    return canonical(channels(data, path), scale @ image.affine, path)


def channels(data: np.ndarray, path: Path) -> np.ndarray:
    """[I, J, K], [I, J, K, C] or [I, J, K, 1, C] -> [I, J, K, C]."""
    if data.ndim == 5 and data.shape[3] == 1:
        data = data[:, :, :, 0]
    if data.ndim not in (3, 4) or not data.size:
        raise ValueError(f"{path}: an array of {list(data.shape)} is no volume: three axes, or four with channels last")
    return data if data.ndim == 4 else data[..., None]
