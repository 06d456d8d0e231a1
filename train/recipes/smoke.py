"""The main job in its smallest form, on real input: a minute on two cores, no claim."""

import dataclasses

from train.recipes import ten_minutes
from train.sequence import SequenceTask
from train.study import Study

STUDY: Study = dataclasses.replace(
    ten_minutes.STUDY,
    base=dataclasses.replace(ten_minutes.STUDY.base, steps=60, train_samples=2000, val_samples=200),
    samples=200,
    samples_beyond=20,
    sequence=SequenceTask(steps=20),
)
