"""47 letters and digits, three seeds, two CPU cores, one to two hours: what each encoding and each rule keeps at larger sizes.

Trained at 32 px (4 x 4 tokens) on zoom (scale-augmented) and canvas pictures alike, about 150 s of one core a model, tested on
held-out fonts at 1 to 8 times the size, under every scaling rule and with and without a log-token temperature. The reading of
the numbers, with what does not work, is in results/cpu_study.md.

    python -m train.extrapolate --recipe cpu_study
"""

import dataclasses

from train.glyphs import CLASSES
from train.recipes import ten_minutes
from train.study import Study

STUDY: Study = dataclasses.replace(
    ten_minutes.STUDY,
    base=dataclasses.replace(ten_minutes.STUDY.base, classes=CLASSES, train_samples=60000, steps=3000),
    encodings=("none", "learned", "sinusoidal", "axial", "mixed"),
    seeds=(0, 1, 2),
    rules=(("none", "none"), ("pi", "none"), ("ntk", "none"), ("yarn", "none"), ("none", "log"), ("pi", "log")),
)
