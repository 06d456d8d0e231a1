"""Which of ten regions is the middle of this cube of a brain? Real volumes: 16³ voxels of 2 mm, one token 4³ voxels.

Trained on cubes of MNI152, tested on 300 of Colin27; chance is 10 %, five nearest neighbours among the training cubes give 84 %.
One seed and one test brain, whose cubes overlap: 95 % intervals over cubes are ± 4 to 6 points, and too narrow for that. In %:

| | 16³ of 2 mm | 32³ of 1 mm | its true spacing | 8×16×16 of 4×2×2 mm | its true spacing | 8×32×32 of 4×1×1 mm | its true spacing |
|---|---|---|---|---|---|---|---|
| none | 76.3 | 53.3 | | 55.3 | | 25.3 | |
| learned | 78.3 | 54.0 | 54.7 | 54.0 | 59.0 | 32.3 | 33.3 |
| axial | 86.7 | 48.3 | 68.0 | 66.0 | 68.3 | 40.0 | 44.0 |
| mixed | 83.7 | 38.3 | 76.3 | 64.3 | 72.3 | 29.7 | 47.0 |
| alibi | 73.0 | 52.3 | 52.3 | 57.3 | 57.3 | 28.0 | 28.3 |

Much is read without positions. With rotation the true spacing wins back half (axial) or five sixths (mixed) of what finer voxels
cost (YaRN as much: at so few tokens both halve every frequency); the rest is lost on tokens that see half as far. In thick slices
mixed gains 8 and 17 points by it, axial 2 and 4, which lie within the intervals, as most other differences there do.

    python -m train.brains --to data/brains
    python -m train.extrapolate --recipe brains
"""

from train.config import Config
from train.recipes.moving import AXIAL, SPACED
from train.recipes.ten_minutes import SMALL
from train.study import Study

STUDY = Study(
    base=Config(
        dataset="volumes",
        data_dir="data/brains",
        tests=("zoom", "slices"),
        model_kwargs=(*SMALL, "patch_size=4", "qk_norm=True"),
        img_size=(16,),
        spacing=(2.0,),
        cache=True,
        batch_size=32,
        steps=1000,
        opt="muon",
        lr=1e-2,
        workers=0,
        threads=1,
    ),
    encodings=("none", "learned", "axial", "mixed", "alibi"),
    variants={"axial": AXIAL},
    ratios={"zoom": (1, 2), "slices": (1, 2)},
    rules={"zoom": (("none",), ("ntk",), ("yarn",), SPACED), "slices": (("none",), SPACED)},
    samples=300,
    sequence=None,
)
