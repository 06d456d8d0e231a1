"""Which way does an O fly? Eight ways, clips of 8 frames of 32 px at 8 frames a second, one token a frame of 8 x 8 px.

Chance is 12.5 %. Frames without their order tell the line that the O flies along, and not which way along it: who reads no more
than that is right half of the time, so that only above 50 % time is surely read. Seeds 0 and 1 of `moving_study`, which trains the
same models (500 clips a test, %):

| | at home | 32 frames | 32 a second | and its seconds | 128 px | and its pixels |
|---|---|---|---|---|---|---|
| none | 39.4, 49.0 | 42.0, 50.8 | 44.6, 50.2 | | 16.4, 19.0 | |
| learned | 47.6, 50.6 | 47.2, 50.4 | 48.6, 48.8 | 47.8, 50.6 | 20.2, 17.4 | 21.0, 17.6 |
| sinusoidal | 45.6, 29.0 | 48.2, 31.0 | 48.8, 30.0 | 48.4, 31.0 | 15.0, 12.6 | 14.8, 13.0 |
| alibi | 34.6, 43.6 | 36.2, 45.8 | 36.2, 47.8 | 36.4, 48.0 | 16.4, 17.4 | 16.2, 17.4 |
| axial | 99.6, 61.6 | 97.6, 41.6 | 72.2, 33.4 | 100.0, 63.0 | 20.4, 21.0 | 42.4, 13.6 |
| axial factorised | 76.4, 47.8 | 63.4, 46.0 | 45.6, 46.4 | 78.0, 47.6 | 24.2, 17.6 | 39.8, 32.4 |
| mixed | 99.8, 100.0 | 47.2, 59.8 | 30.2, 37.2 | 99.8, 100.0 | 15.8, 13.2 | 76.6, 58.2 |

Rotation alone leaves the half that needs no time within these steps, mixed vectors in both seeds, axial ones in one of them: the
others are still on that plateau, and this says nothing of where they would end. Counting time in seconds keeps all of it at four
times the frame rate.

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
        steps=1400,
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
    samples=200,
    sequence=None,
)
