"""ImageNet-1k as in the rope-vit paper (Heo 2024): DeiT-III recipe, ViT-S/16, 400 epochs at 224, tested at 144 to 512.

Published there, top-1 at 224 and 384: learned table 80.4 and 79.4, axial 80.9 and 80.0, mixed 80.9 and 81.8. Not run by us.
Needs ImageNet in imagenet/train and imagenet/val, and about a week of eight large GPUs for the three models; one model with
several processes, and then its sizes:

    torchrun --nproc-per-node 8 -m train --dataset folder --data-dir imagenet --model deit3_small_patch16_224 ...
    python -m train.evaluate --checkpoint runs/NAME --sizes 144 192 224 256 320 384 512 --scaling none pi yarn

On one GPU, all of it: python -m train.extrapolate --recipe imagenet_small
"""

from train.config import Config
from train.study import Study

STUDY = Study(
    base=Config(
        dataset="folder",
        data_dir="imagenet",
        val_split="val",
        val_samples=50000,
        model="deit3_small_patch16_224",
        img_size=(224,),
        batch_size=256,
        grad_accum_steps=8,
        epochs=400,
        opt="lamb",
        lr=4e-3,
        weight_decay=0.05,
        warmup_steps=3125,
        mixup=0.8,
        cutmix=1.0,
        drop_path=0.05,
        aa="3a",
        bce_loss=True,
        color_jitter=0.3,
        model_ema=False,
        amp=True,
        device="cuda",
        workers=12,
    ),
    encodings=("timm", "axial", "mixed"),
    ratios=tuple(size / 224 for size in (144, 192, 224, 256, 320, 384, 512)),
    samples=50000,
    samples_beyond=50000,
    sequence=None,
)
