"""The recipe `moving` with three seeds, 1,400 steps and more test clips. Being measured: see results/moving.md.

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
