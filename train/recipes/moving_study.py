"""The recipe `moving` with three seeds and more test clips. Seeds 0 and 1 are told of there; the third is still to be run.

python -m train.extrapolate --recipe moving_study
"""

import dataclasses

from train.recipes import moving
from train.study import Study

STUDY: Study = dataclasses.replace(
    moving.STUDY,
    seeds=(0, 1, 2),
    rules={**moving.STUDY.rules, "zoom": (("none",), ("ntk",), ("yarn",), moving.SPACED)},
    samples=500,
)
