"""Which encodings survive keys of few bits? Being measured; see results/low_precision.md.

The ten digits of the ten-minute recipe in 1,000 steps, seven encodings, three seeds; then every model is tested again with keys
rounded to fp16, bf16, int8, fp8 and int4, before and after the turning, with a scale a token or a channel.

    python -m train.extrapolate --recipe low_precision --name low_precision
    python -m train.precision runs/low_precision
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
