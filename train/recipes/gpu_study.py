"""47 letters and digits at 64 px (8 x 8 tokens), sized for ten minutes on one large GPU. Not run yet: no numbers are claimed.

A ViT of 2.7 M parameters, trained in bfloat16 on zoom and canvas pictures alike, tested at 64 to 512 px (4,096 tokens).

    python -m train.extrapolate --recipe gpu_study
"""

import dataclasses

from train.glyphs import CLASSES
from train.recipes import cpu_study
from train.study import Study

STUDY: Study = dataclasses.replace(
    cpu_study.STUDY,
    base=dataclasses.replace(
        cpu_study.STUDY.base,
        model_kwargs=("patch_size=8", "embed_dim=192", "depth=6", "num_heads=3", "class_token=False", "global_pool=avg"),
        img_size=(64,),
        classes=CLASSES,
        train_samples=100000,
        batch_size=512,
        steps=1500,
        device="cuda",
        amp=True,
        threads=None,
    ),
    seeds=(0,),
)
