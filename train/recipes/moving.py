"""Which way does an O fly? Eight ways, clips of 8 frames of 32 px at 8 frames a second, one token a frame of 8 x 8 px.

Chance is 12.5 %. Frames without their order tell the line that the O flies along, and not which way along it: who reads no more
than that is right half of the time, so that only above 50 % time is surely read. Mixed rotation reads 90 % and factorised axial 76
(one seed), and all of that at four times the frame rate if time is in seconds; the others are at the half, which axial leaves some
hundred steps later. 819 s on two cores; see results/moving.md.

Trained models are tested on longer clips, at higher frame rates and at more pixels; "true spacing" counts time in seconds and
places in pixels of the training size, where all else counts frames and patches. Queries and keys are normed in all models.

    python -m train.extrapolate --recipe moving
"""

from train.config import Config
from train.recipes.ten_minutes import SMALL
from train.study import Study

AXIAL = {"encoding": "axial", "encoding_kwargs": ("theta=10.0",)}  # few tokens an axis: the base that mixed has
SPACED = ("none", "none", "units")

STUDY = Study(
    base=Config(
        dataset="moving",
        question="direction",
        classes="O",
        tests=("longer", "rate", "zoom"),
        model_kwargs=(*SMALL, "qk_norm=True"),
        img_size=(32,),
        frames=8,
        fps=8.0,
        tubelet=1,
        train_samples=12000,
        val_samples=500,
        cache=True,
        batch_size=32,
        steps=1200,
        opt="muon",
        lr=2e-2,
        workers=0,
        threads=1,
    ),
    encodings=("none", "learned", "sinusoidal", "axial", "axial factorised", "mixed", "alibi"),
    variants={"axial": AXIAL, "axial factorised": {**AXIAL, "attention": "factorised"}},
    ratios=(1, 2, 4),
    rules={
        "longer": (("none",), ("time pi",), ("time ntk",), ("time yarn",)),
        "rate": (("none",), ("time ntk",), ("time yarn",), SPACED),
        "zoom": (("none",), SPACED),
    },
    samples=150,
    sequence=None,
)
