"""NIfTI files, through nibabel."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from train.bad import MAX_PIXELS, BadFile, check_size, naming
from train.readers.need import need
from train.readers.space import Volume, canonical

NIFTI = ".nii", ".nii.gz"
MILLIMETRES = {"meter": 1000.0, "mm": 1.0, "micron": 0.001, "unknown": 1.0}


def read_nifti(path: Path, most: int = MAX_PIXELS) -> Volume:
    """A .nii or .nii.gz file of at most so many voxels, scaled as its header says; a fourth axis is channels."""
    nib = need("nibabel", "volume")
    with naming(f"{path}: cannot be read as NIfTI"):
        image = nib.load(path)
        check_size(image.shape, most, "voxels")
        kind, unit = image.get_data_dtype(), image.header.get_xyzt_units()[0]
        if kind.kind in "Vc":
            raise BadFile(f"{path}: holds {kind} values, not one real number a voxel")
        data = np.asarray(image.dataobj, np.float32)
        scale = np.diag([*[MILLIMETRES[unit]] * 3, 1.0])
        return canonical(channels(data, path), scale @ image.affine, path)


def channels(data: np.ndarray, path: Path) -> np.ndarray:
    """[I, J, K], [I, J, K, C] or [I, J, K, 1, C] -> [I, J, K, C]."""
    if data.ndim == 5 and data.shape[3] == 1:
        data = data[:, :, :, 0]
    if data.ndim not in (3, 4) or not data.size:
        raise BadFile(f"{path}: an array of {list(data.shape)} is no volume: three axes, or four with channels last")
    return data if data.ndim == 4 else data[..., None]
