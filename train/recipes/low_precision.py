"""Which encodings survive keys of few bits? All but PaPE, down to int4, and PaPE too if its keys are rounded before the folding.

The ten digits of the ten-minute recipe in 1,000 steps, seven encodings, three seeds; then every model is tested again with rounded
keys, before and after the turning, with a scale a token or a channel. 14 and 6 minutes on two shared cores of an AMD EPYC;
results/low_precision.md.

    python -m train.extrapolate --recipe low_precision --name low_precision
    python -m train.precision runs/low_precision --samples 500 --formats int8 e4m3 int4
"""

import dataclasses

from train.recipes import ten_minutes
from train.study import Study

STUDY: Study = dataclasses.replace(
    ten_minutes.STUDY,
    base=dataclasses.replace(ten_minutes.STUDY.base, steps=1000),
    encodings=("learned", "sinusoidal", "alibi", "axial", "mixed", "pope", "pape"),
    seeds=(0, 1, 2),
    ratios=(1, 2),
    rules=(("none", "none"), ("pi", "none")),
    samples=500,
    sequence=None,
)
