"""Which of two glyphs came first? As `moving_study`, but an A and an X fly one after the other; 600 steps. Being measured.

Whoever sees that there are an A and an X, and not in which order, is right half of the time.

    python -m train.extrapolate --recipe moving_order
"""

import dataclasses

from train.recipes import moving_study
from train.study import Study

STUDY: Study = dataclasses.replace(
    moving_study.STUDY,
    base=dataclasses.replace(moving_study.STUDY.base, question="order", classes="AX", steps=600),
)
