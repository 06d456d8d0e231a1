"""A DICOM series: one file a slice, put in order along the normal of the slices, with the rescaling of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from train.bad import MAX_PIXELS, BadFile, check_size, naming
from train.readers.need import need
from train.readers.space import Volume, canonical

TOLERANCE = 0.01  # of the distance of slices: how far a slice may lie from where it should
ALIKE = "Rows", "Columns", "PixelSpacing", "ImageOrientationPatient"
DEFLATED = "1.2.840.10008.1.2.1.99"  # a transfer syntax: all of the file after its first part is packed
NEEDED = (*ALIKE, "ImagePositionPatient", "PixelData")


def read_dicom(folder: Path, series: str | None = None, most: int = MAX_PIXELS) -> Volume:
    """The slices of a folder as a volume [1, D, H, W] of at most so many voxels; `series` chooses a SeriesInstanceUID where there
    are several.

    Refused by name: slices unevenly apart, twice at a place, sheared (a tilted gantry), of several sizes, colours, and files that
    hold many frames.
    """
    slices = chosen(load(folder, most), series, folder)
    with naming(f"{folder}: cannot be read as a series"):
        check_size((len(slices), slices[0].Rows, slices[0].Columns), most, "voxels")
        return stacked(slices, folder)


def stacked(slices: list[Any], folder: Path) -> Volume:
    """The slices in their order along the normal."""
    first = slices[0]
    for name in ALIKE:
        for other in slices[1:]:
            if not np.allclose(np.ravel(other[name].value), np.ravel(first[name].value), atol=1e-4):
                raise BadFile(f"{other.filename}: {name} {other[name].value}, but {first.filename} has {first[name].value}")
    along_row, along_column = np.array(first.ImageOrientationPatient, float).reshape(2, 3)  # left, posterior, superior
    normal = np.cross(along_row, along_column)
    places = np.array([s.ImagePositionPatient for s in slices], float)  # [N, 3]
    order = np.argsort(places @ normal, kind="stable")
    slices, places = [slices[i] for i in order], places[order]
    down, right = (float(v) for v in first.PixelSpacing)  # millimetres from row to row, from column to column
    affine = np.eye(4)
    affine[:3] = np.stack([normal * distance(slices, places, normal), along_column * down, along_row * right, places[0]], 1)
    affine[:2] *= -1  # left, posterior -> right, anterior
    return canonical(np.stack([values(s) for s in slices])[..., None], affine, folder)


def load(folder: Path, most: int) -> list[Any]:
    """Every file of the folder, read and checked; a DICOMDIR and hidden files are left out."""
    pydicom = need("pydicom", "volume")
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.name != "DICOMDIR" and not f.name.startswith("."))
    if not files:
        raise BadFile(f"{folder}: no DICOM files in it")
    return [checked(file, pydicom, most) for file in files]


def checked(file: Path, pydicom: Any, most: int) -> Any:
    with naming(f"{file}: cannot be read as DICOM"):
        if pydicom.filereader.read_file_meta_info(file).get("TransferSyntaxUID") == DEFLATED:
            raise ValueError("it is deflated, which may unpack to any size: store it uncompressed")
        found = pydicom.dcmread(file)
        _check_slice(found, file, most)
    return found


def _check_slice(found: Any, file: Path, most: int) -> None:
    """One frame of single numbers, with what a volume needs, and not too large."""
    if int(found.get("NumberOfFrames", 1) or 1) > 1 or int(found.get("SamplesPerPixel", 1) or 1) > 1:
        raise BadFile(f"{file}: holds many frames or colours: convert it to NIfTI; here a slice is a file of single numbers")
    if missing := [name for name in NEEDED if found.get(name) is None]:
        raise BadFile(f"{file}: is no slice of a volume: it has no {', '.join(missing)}")
    check_size((found.Rows, found.Columns), most)


def chosen(slices: list[Any], series: str | None, folder: Path) -> list[Any]:
    """The slices of one series."""
    known = sorted({str(s.get("SeriesInstanceUID", "")) for s in slices})
    if (series is None and len(known) > 1) or (series is not None and series not in known):
        raise ValueError(f"{folder}: choose one series (or keep each in a folder of its own): {', '.join(known)}")
    return [s for s in slices if series is None or str(s.get("SeriesInstanceUID", "")) == series]


def distance(slices: list[Any], places: np.ndarray, normal: np.ndarray) -> float:
    """Millimetres from slice to slice, which must be the same everywhere and straight along the normal; a single slice must say."""
    if len(slices) == 1:
        thickness = float(slices[0].get("SliceThickness") or 0)
        if thickness <= 0:
            raise BadFile(f"{slices[0].filename}: a single slice without SliceThickness has no spacing")
        return thickness
    steps = np.diff(places, axis=0)  # [N - 1, 3]
    gaps = steps @ normal
    usual = float(np.median(gaps))
    odd = int(np.abs(gaps - usual).argmax())
    if usual <= 0 or gaps.min() <= 0 or abs(gaps[odd] - usual) > TOLERANCE * usual:
        odd = odd if gaps.min() > 0 else int(gaps.argmin())
        pair = f"{slices[odd].filename} and {slices[odd + 1].filename}"
        raise BadFile(
            f"uneven spacing: {pair} lie {gaps[odd]:.4g} mm apart, slices usually {usual:.4g} mm: one is missing or twice"
        )
    if np.linalg.norm(steps - gaps[:, None] * normal, axis=1).max() > TOLERANCE * usual:
        raise BadFile(f"{slices[0].filename}: slices are shifted against each other (a tilted gantry): resample them first")
    return float(gaps.mean())


def values(found: Any) -> np.ndarray:
    """The numbers of a slice [H, W], float32: stored value * slope + intercept."""
    with naming(f"{found.filename}: its pixels cannot be decoded"):
        stored = found.pixel_array
    slope, intercept = (float(found.get(name, default)) for name, default in (("RescaleSlope", 1), ("RescaleIntercept", 0)))
    return (stored.astype(np.float64) * slope + intercept).astype(np.float32)
