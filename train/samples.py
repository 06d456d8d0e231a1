"""The sheet of samples of a study: one input at every size, a row a test; of clips four frames, of volumes four slices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from train.cases import Case
from train.config import DRAWN, Config
from train.data import stored
from train.evaluate import test_set
from train.study import Study

SHOWN, GAP, BETWEEN, LINE = 4, 12, 2, 16  # frames or slices; pixels between inputs, between frames, and of a line of text
LEAST = 32  # pixels of the smaller side of a training input on the sheet, at least
READ = (*DRAWN, "folder", "clips", "volumes")


def sheet(study: Study, path: Path) -> None:
    """Write the sheet; data sets of other names than READ have none."""
    base = study.base
    if base.dataset not in READ:
        return
    scale = max(1, -(-LEAST // min(base.size[-2:])))
    cases = [[at for at, *_ in study.plan() if at.test == test] for test in base.measured_tests]
    rows = [[block(sample(base, at), f"{at.test} {at.column(base.kind).label(at.test)}", scale) for at in row] for row in cases]
    beside([beside(row, GAP, down=False) for row in rows], GAP, down=True, around=GAP).save(path)


def sample(config: Config, at: Case) -> Tensor:
    """One test input of a case, uint8 `[C, H, W]` or `[C, T, H, W]`."""
    if config.dataset in DRAWN:
        found: Tensor = test_set(config, at, 20)[0][5][0]
        return found
    data = stored(dataclasses.replace(config, cache=False), at, split=config.measured_split)
    found = data[len(data) // 2][0]  # type: ignore[arg-type]
    if found.dtype == torch.uint8:
        return found
    return ((found - found.min()) / (found.max() - found.min()).clamp_min(1e-6) * 255).to(torch.uint8)


def block(sample: Tensor, label: str, scale: int) -> Image.Image:
    """An input under its label; of clips frames from the first to the last, of volumes (one channel) slices about the middle."""
    tiles = [sample] if sample.ndim == 3 else list(sample[:, places(sample)].unbind(1))
    row = beside([tile(frame, scale) for frame in tiles], BETWEEN, down=False)
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 11)  # which comes with matplotlib
    found = Image.new("RGB", (max(row.width, round(font.getlength(label)) + 1), row.height + LINE), "white")
    ImageDraw.Draw(found).text((0, 0), label, "#444444", font)
    found.paste(row, (0, LINE))
    return found


def places(sample: Tensor) -> Tensor:
    """Which frames or slices are shown."""
    count = sample.shape[1]
    if len(sample) == 1:
        return ((torch.arange(SHOWN) + 0.5) / SHOWN * count - 0.5).round().long()
    return torch.linspace(0, count - 1, SHOWN).round().long()


def tile(frame: Tensor, scale: int) -> Image.Image:
    """A picture of a frame `[C, H, W]`, each pixel `scale` pixels a side."""
    picture = Image.fromarray(frame.expand(3, -1, -1).permute(1, 2, 0).numpy())
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def beside(pictures: list[Image.Image], gap: int, *, down: bool, around: int = 0) -> Image.Image:
    """Pictures in a row, or one under the other, on white."""
    sides = [picture.height if down else picture.width for picture in pictures]
    length, across = sum(sides) + gap * (len(sides) - 1), max(picture.width if down else picture.height for picture in pictures)
    size = (across, length) if down else (length, across)
    found, at = Image.new("RGB", (size[0] + 2 * around, size[1] + 2 * around), "white"), around
    for picture, side in zip(pictures, sides):
        found.paste(picture, (around, at) if down else (at, around))
        at += side + gap
    return found
