"""Trained at 32 px, read at up to 256 through windows of 32 px at every place and scale: 99 % of zoom and 97 % of canvas kept at
four times the size by one setting, 96 and 93 at eight. See results/record.md.

47 letters and digits, three seeds. Training pictures show whole glyphs of many sizes, or none whole, which is one class more
(`train.glyphs.views`); larger pictures are read as `rope_nd.pyramid` says. How windows are compared, and `floor`, were chosen on
pictures of the validation fonts.

    python -m train.extrapolate --recipe record
"""

import dataclasses

from train.recipes import cpu_study
from train.study import Study

STUDY: Study = dataclasses.replace(
    cpu_study.STUDY,
    base=dataclasses.replace(cpu_study.STUDY.base, rest=0.42, train_samples=120000, steps=8000),
    encodings=("mixed", "axial"),
    rules=(("none",), ("pi",), ("whole",), ("windows",), ("pyramid",)),
    ratios=(1, 2, 4, 8),
    samples=1000,
    samples_beyond=300,
    sequence=None,
)
