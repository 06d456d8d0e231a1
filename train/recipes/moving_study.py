"""The recipe `moving` with three seeds, twice the steps and more test clips, about two hours. Being measured: no numbers yet.

python -m train.extrapolate --recipe moving_study
"""

import dataclasses

from train.recipes import moving
from train.study import Study

STUDY: Study = dataclasses.replace(
    moving.STUDY,
    base=dataclasses.replace(moving.STUDY.base, steps=3000),
    seeds=(0, 1, 2),
    rules={**moving.STUDY.rules, "zoom": (("none",), ("ntk",), ("yarn",), moving.SPACED)},
    samples=1000,
)
