"""Which of ten digits, cut out of a slab and turned in space? Volumes of 16³ voxels of 1 mm, one token 4³ voxels.

Axial and mixed rotation read 75 and 77 % at home, a learned table 60, sines and ALiBi 50, no positions 42 (one seed, 300 volumes,
chance 10); 18 minutes on two cores shared with other work. See results/solids.md.

Trained models are tested on finer voxels, on a field twice as wide, and on fewer and thicker slices; "true spacing" counts in
millimetres, where all else counts tokens.

    python -m train.extrapolate --recipe solids
"""

from train.config import Config
from train.recipes.moving import AXIAL, SPACED
from train.recipes.ten_minutes import SMALL
from train.study import Study

STUDY = Study(
    base=Config(
        dataset="solids",
        classes="0123456789",
        model_kwargs=(*SMALL, "patch_size=4", "qk_norm=True"),
        img_size=(16,),
        train_samples=12000,
        val_samples=500,
        cache=True,
        batch_size=32,
        steps=1600,
        opt="muon",
        lr=1e-2,
        workers=0,
        threads=1,
    ),
    encodings=("none", "learned", "sinusoidal", "axial", "mixed", "alibi"),
    variants={"axial": AXIAL},
    ratios={"zoom": (1, 1.5, 2, 3), "canvas": (1, 2), "slices": (1, 2)},
    rules={
        "zoom": (("none",), ("ntk",), ("yarn",), SPACED),
        "canvas": (("none",), ("pi",), ("ntk",), ("yarn",)),
        "slices": (("none",), SPACED),
    },
    samples=300,
    sequence=None,
)
