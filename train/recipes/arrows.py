"""The arrows task of the LieRE paper (Ostmeier 2024). Being measured; see results/arrows.md.

A ViT of 0.2 M parameters with one token a cell, trained at 108 px (9 x 9 cells) and tested there, at 168 and at 276 px, where rays
are longer. Published for a ViT-B: absolute 45.1 / 41.0 / 40.1 %, mixed 100 / 98.6 / 88.6 %, LieRE 99.5 / 99.7 / 99.7 %.

    python -m train.extrapolate --recipe arrows
"""

from train.config import Config
from train.recipes.ten_minutes import SMALL
from train.study import Study

STUDY = Study(
    base=Config(
        dataset="arrows",
        model_kwargs=(*SMALL, "patch_size=12", "depth=4"),
        img_size=(108,),
        train_samples=100000,
        batch_size=64,
        steps=800,
        opt="muon",
        lr=1e-2,
        workers=0,
        threads=1,
    ),
    encodings=("none", "learned", "sinusoidal", "axial", "mixed"),
    seeds=(0, 1, 2),
    ratios=(1, 14 / 9, 23 / 9),
    rules=(("none", "none"), ("pi", "none")),
    sequence=None,
)
