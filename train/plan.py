"""`python -m train.plan --model vit_base_patch16_224`: what a large run is planned from, measured on this machine.

Bytes that a step moves between devices, size and time of a checkpoint (AdamW and a moving average), and how many pictures one core
of a loader makes ready. `docs/running.md` says how to plan with them. Without `--data-dir` the pictures are JPEGs of 500 x 375 made
here.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from rich.table import Table

from train import checkpoint, cli
from train.config import Config
from train.draws import batches
from train.engine import Trainer

SIDES = 375, 500  # about the mean of ImageNet's
KINDS = "a", "b"


def main(
    model: str = "vit_small_patch16_224",
    data_dir: Path | None = None,
    aa: str = "rand-m9-mstd0.5-inc1",
    batch_size: int = 32,
    count: int = 12,
    repeats: int = 5,
    to: Path | None = None,
) -> None:
    """Measure what a large run is planned from.

    Args:
        model: Any model that rope_nd.wrap takes.
        data_dir: Pictures, a folder a class under train/ and val/.
        aa: timm's augmentation.
        batch_size: Of the loader.
        count: Batches that are timed, after one that is not.
        repeats: Checkpoints that are timed.
        to: Where checkpoints are written (default: a temporary folder), for the disk that counts.
    """
    with tempfile.TemporaryDirectory(dir=to) as folder:
        root = photographs(Path(folder) / "data", 4 * batch_size) if data_dir is None else data_dir
        given = {"dataset": "folder", "data_dir": str(root), "num_classes": 1000 if data_dir is None else None}
        config = Config(model=model, aa=aa, batch_size=batch_size, workers=1, threads=1, model_ema=True, steps=10**6, **given)
        trainer = Trainer(config, Path(folder) / "run")
        moved(trainer)
        found = {**sizes(trainer), **checkpoints(trainer, repeats), **loader(trainer, count)}
    table = Table("what", "measured", title=f"{model}, {cli.machine()['cpu']}, torch {torch.__version__}")
    for name, value in found.items():
        table.add_row(name, value)
    cli.console.print(table)


def photographs(root: Path, count: int) -> Path:
    """JPEGs of smooth noise with grain: about 100 KB each, as photographs of that size are."""
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for kind in KINDS:
            (root / split / kind).mkdir(parents=True)
    for number in range(count):
        coarse = torch.rand(1, 3, 12, 16, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, SIDES, mode="bicubic")[0].permute(1, 2, 0)  # [H, W, 3]
        grainy = (255 * smooth + 20 * torch.randn(*SIDES, 3, generator=generator)).clamp(0, 255).byte()
        split = "val" if number < len(KINDS) else "train"
        Image.fromarray(grainy.numpy()).save(root / split / KINDS[number % len(KINDS)] / f"{number}.jpg", quality=90)
    return root


def moved(trainer: Trainer) -> None:
    """One update, so that the optimiser has its state."""
    for p in trainer.model.parameters():
        p.grad = torch.zeros_like(p)
    trainer.optimizer.step()


def sizes(trainer: Trainer) -> dict[str, str]:
    parameters = sum(p.numel() for p in trainer.model.parameters())
    return {
        "parameters": f"{parameters / 1e6:.1f} M",
        "a step, each device of many sends and receives (DDP, float32)": f"{2 * 4 * parameters / 1e6:.0f} MB",
        "the same with --fsdp": f"{3 * 4 * parameters / 1e6:.0f} MB",
    }


def checkpoints(trainer: Trainer, repeats: int) -> dict[str, str]:
    """Size, and medians of the time to write (with all digests and flushes) and to read one."""
    written, taken = [], []
    for step in range(repeats):
        trainer.progress.step = step + 1
        began = time.perf_counter()
        path = trainer.record.save(trainer._parts(), trainer.progress)
        written.append(time.perf_counter() - began)
        began = time.perf_counter()
        checkpoint.read(path)
        taken.append(time.perf_counter() - began)
    size = sum(file.stat().st_size for file in path.iterdir())
    told = f"{statistics.median(written):.2f} s to write, {statistics.median(taken):.2f} s to read"
    return {"a checkpoint": f"{size / 1e6:.0f} MB, {told}"}


def loader(trainer: Trainer, count: int) -> dict[str, str]:
    """Pictures a second of one loader process: read, decoded, cut, augmented, as tensors here."""
    config = trainer.config
    source = batches(trainer.data, config, start=0, end=count + 1)
    next(source)
    began = time.perf_counter()
    for _ in range(count):
        next(source)
    rate = count * config.batch_size / (time.perf_counter() - began)
    return {f"one loader process, {config.aa}, {config.size[0]} px": f"{rate:.0f} pictures/s"}


if __name__ == "__main__":
    cli.run(main, "python -m train.plan")
