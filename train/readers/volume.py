"""One volume from a file or folder."""

from __future__ import annotations

from pathlib import Path

from train.bad import MAX_PIXELS
from train.readers.dicom import read_dicom
from train.readers.nifti import NIFTI, read_nifti
from train.readers.space import Volume


def read_volume(path: str | Path, *, series: str | None = None, max_voxels: int = MAX_PIXELS) -> Volume:
    """A volume, its spacing in millimetres and its orientation (see `space`), from a NIfTI file or a folder of DICOM slices.

    series      DICOM: the SeriesInstanceUID to read, where a folder holds several
    max_voxels  how many the headers may claim, or nothing is decoded
    """
    path = Path(path)
    if path.is_dir():
        return read_dicom(path, series, max_voxels)
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    if not path.name.lower().endswith(NIFTI):
        raise ValueError(f"{path}: a volume is a {' or '.join(NIFTI)} file, or a folder of DICOM slices")
    return read_nifti(path, max_voxels)
