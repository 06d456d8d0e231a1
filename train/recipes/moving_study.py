"""The recipe `moving` with three seeds, 1,400 steps and more test clips: mixed 90 ± 17 % at home, axial 71 ± 26, factorised 75 ±
26, others 40 to 49; in seconds none of them loses anything at four times the frame rate. See results/moving.md.

python -m train.extrapolate --recipe moving_study
"""

import dataclasses

from train.recipes import moving
from train.study import Study

STUDY: Study = dataclasses.replace(
    moving.STUDY,
    base=dataclasses.replace(moving.STUDY.base, steps=1400),
    seeds=(0, 1, 2),
    rules={**moving.STUDY.rules, "zoom": (("none",), ("ntk",), ("yarn",), moving.SPACED)},
    samples=500,
)
