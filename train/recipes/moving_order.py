"""Which of two glyphs came first? As `moving_study`, but an A and an X fly one after the other; 600 steps.

Whoever sees that there are an A and an X, and not in which order, is right half of the time. Of nine models with rotation (three
seeds) four know the order after 600 steps (91 %), the others, and all without rotation, nothing of it. At four times the frames, or
the rate, interpolation along time and positions in seconds keep all of it (results/moving.md).

    python -m train.extrapolate --recipe moving_order
"""

import dataclasses

from train.recipes import moving_study
from train.study import Study

STUDY: Study = dataclasses.replace(
    moving_study.STUDY,
    base=dataclasses.replace(moving_study.STUDY.base, question="order", classes="AX", steps=600),
)
