"""Pictures of a retrofit: fidelity over the steps, and features at each size, original beside retrofitted.

python -m train.retrofit.picture runs/retrofit --image PHOTO.png --sizes 112 168 336 504
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn

from rope_nd.look import colours, directions
from train import cli
from train.retrofit import schedule
from train.retrofit.config import Config
from train.retrofit.distil import features, normalise
from train.retrofit.images import whole
from train.retrofit.model import load, original, teacher


def over_time(rows: Sequence[dict[str, Any]], config: Config) -> Figure:
    """Cosine to the teacher where it was measured: patch tokens solid, what is pooled dashed; below, strength and the table's
    weight at every step until then."""
    figure, (top, low) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(4, 1), layout="constrained")
    for number, size in enumerate(dict.fromkeys(row["size"] for row in rows)):
        own = [row for row in rows if row["size"] == size]
        steps = [row["step"] for row in own]
        top.plot(steps, [row["patches"] for row in own], f"C{number}-", marker=".", label=f"{size} px, patches")
        top.plot(steps, [row["pooled"] for row in own], f"C{number}--", alpha=0.7)
    every = range(rows[-1]["step"] + 1)
    for name, style in (("strength", "k-"), ("absolute", "k:")):
        low.plot(every, [getattr(schedule, name)(step, config) for step in every], style, label=name)
    top.set_ylabel("cosine to the original (dashed: pooled)")
    low.set_xlabel("step")
    for axes in (top, low):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def write_picture(path: Path, figure: Figure) -> None:
    temporary = path.with_name(f".{path.stem}.tmp.png")
    figure.savefig(temporary, dpi=120)
    plt.close(figure)
    os.replace(temporary, path)


@torch.inference_mode()
def pca(models: dict[str, nn.Module], path: Path, sizes: Sequence[int]) -> Figure:
    """One image, a row a size: itself, then each model's patch tokens in colours; directions are those of the first model."""
    figure, axes = plt.subplots(len(sizes), 1 + len(models), squeeze=False, layout="constrained")
    figure.set_size_inches(2.2 * (1 + len(models)), 2.3 * len(sizes))
    first = next(iter(models.values()))
    for line, size in zip(axes, sizes):
        image = whole(path, size)[None]
        found = {name: features(model, normalise(image, first, "cpu")) for name, model in models.items()}
        basis = directions(next(iter(found.values())).patches[0].float())
        pictures = [
            image[0].movedim(0, -1),
            *(colours(each.patches[0].unflatten(0, each.extent), basis) for each in found.values()),
        ]
        for place, picture, title in zip(line, pictures, (f"{size} px", *found)):
            place.imshow(picture.numpy(), interpolation="nearest")
            place.set_title(title, fontsize=9)
            place.axis("off")
    return figure


def main(run: Path, image: Path, sizes: tuple[int, ...] = (112, 168, 336, 504), output: Path | None = None) -> None:
    """Features of one image at several sizes, original beside retrofitted.

    Args:
        run: Folder of a finished retrofit.
        image: A picture.
        sizes: Pixels.
        output: Where to write (default: features.png in the run's folder).
    """
    model, config = load(run)
    first = teacher(original(config), antialias=config.antialias)
    write_picture(output or run / "features.png", pca({"original": first, "retrofitted": model}, image, sizes))


if __name__ == "__main__":
    cli.run(main, "python -m train.retrofit.picture")
