"""What each part of `record` is worth: the encoding, the class for the rest, the windows; and timm's model beside it. One seed.

The two without the rest were measured (results/record.md), the encodings with it not yet.

python -m train.extrapolate --recipe record_ablation
"""

import dataclasses

from train.recipes import record
from train.study import Study

USUAL = {"rest": 0.0, "train_samples": 60000}  # training pictures as in cpu_study, as many
STUDY: Study = dataclasses.replace(
    record.STUDY,
    encodings=("none", "learned", "sinusoidal", "golden", "simplex", "fire", "mixed, no rest", "timm, no rest"),
    samples=500,
    samples_beyond=100,
    variants={"mixed, no rest": {"encoding": "mixed", **USUAL}, "timm, no rest": {"encoding": "timm", **USUAL}},
    seeds=(0,),
)
