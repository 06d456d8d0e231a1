"""The arrows task of the LieRE paper (Ostmeier 2025): absolute codes count (46 %), rotation follows the arrow (99.8 %).

A ViT of 0.2 M parameters with one token a cell, trained at 108 px (9 x 9 cells) and tested there, at 168 and at 276 px, where rays
are longer: sinusoidal 46.4 / 43.5 / 41.5 %, axial 99.8 / 95.5 / 93.6 %, mixed 99.9 / 93.4 / 78.2 %, three seeds, 33 minutes on two
shared cores of an AMD EPYC. Published for a ViT-B: absolute 45.1 / 41.0 / 40.1 %, mixed 100 / 98.6 / 88.6 %; results/arrows.md.

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
