"""`python -m train.evaluate --checkpoint runs/NAME --sizes 32 64 48x96 --scaling none pi yarn`: any sizes, rules, temperatures."""

from __future__ import annotations

import csv
import functools
import hashlib
import os
import resource
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor, nn

from rope_nd.registry import scalings
from rope_nd.scaling import RULES
from rope_nd.wrapping.families import wrapped_trunk
from rope_nd.wrapping.stack import Stack
from train import cli
from train.config import Config
from train.data import Drawn, arrows, glyphs, loader, pictures
from train.modelling import load, normalise, patch_size
from train.rows import COLUMNS, Row

Size = tuple[int, int]
Rule = tuple[str, str]  # a scaling and a temperature
TOKENS = 8192  # a batch holds about this many tokens, at every size


@dataclass(frozen=True)
class Score:
    """Which pictures were right `[N]`, seconds for all of them, and peak memory."""

    right: Tensor
    seconds: float
    memory_mb: float

    @property
    def accuracy(self) -> float:
        return self.right.double().mean().item()


@functools.lru_cache(maxsize=32)
def drawn(config: Config, test: str, size: Size, samples: int, crop: bool = False) -> tuple[Drawn, Tensor]:
    """Test glyphs in memory, the same for every model of a study, and the font cluster of each."""
    options = {"crop": True} if crop else {}
    source = glyphs(config, split=config.measured_split, test=test, size=size, samples=samples, **options)
    return Drawn.draw([source]), source.clusters


def test_set(config: Config, test: str, size: Size, samples: int, crop: bool = False) -> tuple[Any, Tensor]:
    """Test pictures at a size, and their groups for the bootstrap (font clusters; single pictures elsewhere)."""
    if config.dataset == "glyphs":
        bare = Config(img_size=config.img_size, classes=config.classes, val_split=config.val_split)  # what the pictures depend on
        return drawn(bare, test, size, samples, crop)
    if config.dataset == "arrows":
        return arrows(config, split=config.measured_split, size=size, samples=samples), torch.arange(samples)
    data = pictures(config, config.measured_split, size)
    count = min(samples, len(data))
    return torch.utils.data.Subset(data, range(count)), torch.arange(count)


@torch.inference_mode()
def score(model: nn.Module, data: Any, config: Config) -> Score:
    """Run the model over all pictures, in order, in batches whose size depends on the pictures' size alone."""
    device = torch.device(config.device)
    model = model.to(device).eval()
    pixels = data[0][0].shape[-2:].numel()
    patch = patch_size(model)
    batch = max(1, min(256, TOKENS * patch[0] * patch[1] // pixels))
    indices = [list(range(i, min(i + batch, len(data)))) for i in range(0, len(data), batch)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    right, seconds = [], 0.0
    for images, labels in loader(data, indices, config.workers):
        start = time.perf_counter()
        with torch.autocast(device.type, getattr(torch, config.amp_dtype), enabled=config.amp):
            guess = model(normalise(images, device)).argmax(-1).cpu()
        seconds += time.perf_counter() - start
        right.append(guess == labels)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Score(torch.cat(right), seconds, peak / 2**20)


def interval(right: Tensor, groups: Tensor, draws: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the accuracy, resampling whole groups (font clusters), always with the same draws."""
    _, which = np.unique(groups.numpy(), return_inverse=True)
    hits, sizes = np.bincount(which, right.double().numpy()), np.bincount(which)
    picked = np.random.default_rng(0).integers(len(sizes), size=(draws, len(sizes)))
    low, high = np.quantile(hits[picked].sum(1) / sizes[picked].sum(1), [0.025, 0.975])
    return float(low), float(high)


def usable(encoding: str, rules: Iterable[Rule]) -> list[Rule]:
    """The rules that mean anything for an encoding: tables can only be stretched, no positions not at all, timm is left alone."""
    known = {"timm": ("none",), "native": ("none", *RULES)}.get(encoding) or scalings(encoding)
    return [(s, t) for s, t in rules if s in known and (encoding != "timm" or t == "none")]


def measure(
    checkpoint: Path, tests: Sequence[str], sizes: Sequence[tuple[Size, int]], rules: Sequence[Rule], facts: dict[str, str]
) -> Iterator[Row]:
    """Rows of one checkpoint: tests × (size, number of pictures) × (scaling, temperature).

    Rules that lead to the same tables (all of them at the training size) give the same numbers, and are run once.
    """
    for test in tests:
        for size, samples in sizes:
            known: dict[bytes, dict[str, Any]] = {}
            upper = _on_crops(checkpoint, size, samples) if test == "canvas" else None
            for scaling, temperature in rules:
                model, config = load(checkpoint, scaling=scaling, temperature=temperature)
                key = fingerprint(model, size)
                if key not in known:
                    known[key] = _numbers(model, config, test, size, samples)
                what = {"encoding": config.title, "seed": config.seed, "test": test, "height": size[0], "width": size[1]}
                rule = {"scaling": scaling, "temperature": temperature, "ratio": size[0] / config.size[0]}
                yield Row(**what, **rule, **known[key], upper=upper, **facts)


@torch.inference_mode()
def fingerprint(model: nn.Module, size: Size) -> bytes:
    """What a model does with positions at a size, as a digest: codes, tables, biases and score factors.

    A model of which that cannot be told without running it (patches of several sizes) has a new digest each time.
    """
    inner = wrapped_trunk(model)
    if inner is None:
        return b"timm"
    if not isinstance(inner, Stack):
        return secrets.token_bytes(16)
    digest = hashlib.sha256()
    for table in _tables(inner.eval().start(torch.zeros(1, inner.in_chans, *size))):
        digest.update(table.float().numpy().tobytes())
    return digest.digest()


def _tables(thing: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and data classes, and those that functions in them make."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (list, tuple)) or is_dataclass(thing):
        for part in thing if isinstance(thing, (list, tuple)) else vars(thing).values():
            yield from _tables(part)
    elif callable(thing):
        yield from _tables(thing())


def _numbers(model: nn.Module, config: Config, test: str, size: Size, samples: int) -> dict[str, Any]:
    data, groups = test_set(config, test, size, samples)
    result = score(model, data, config)
    low, high = interval(result.right, groups)
    return {
        "accuracy": result.accuracy,
        "low": low,
        "high": high,
        "images": len(result.right),
        "images_per_s": round(len(result.right) / result.seconds, 1),
        "memory_mb": round(result.memory_mb, 1),
    }


def _on_crops(checkpoint: Path, size: Size, samples: int) -> float | None:
    """The upper bound on the canvas: the same model, at its training size, on the true crop of the same pictures, if it has one."""
    model, config = load(checkpoint)
    if config.dataset != "glyphs":
        return None
    return score(model, test_set(config, "canvas", size, samples, crop=True)[0], config).accuracy


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """A whole CSV file, or none."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in asdict(row).items()} for row in rows)
    os.replace(temporary, path)


def parse_size(text: str) -> Size:
    """`224` or `320x448` (height x width)."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise ValueError(f"size {text!r}: write 224, or 320x448 for height and width")
    return int(parts[0]), int(parts[-1])


def main(
    checkpoint: Path,
    sizes: tuple[str, ...] = (),
    scaling: tuple[str, ...] = ("none",),
    temperature: tuple[str, ...] = ("none",),
    test: tuple[Literal["zoom", "canvas"], ...] = (),
    samples: int | None = None,
    output: Annotated[Path | None, tyro.conf.arg(metavar="CSV")] = None,
) -> None:
    """Evaluate a trained model at other sizes.

    Args:
        checkpoint: Folder with model.safetensors and config.json, as python -m train writes it.
        sizes: Sizes in pixels, 224 or 320x448 (height x width); default the training size.
        scaling: Rules for sizes above the trained one: none, pi, ntk, yarn, ...
        temperature: Factors on the attention scores: none, log, yarn.
        test: For glyphs, zoom (more pixels) or canvas (a larger field); default what it was trained on.
        samples: Number of test pictures (default: as in training).
        output: Also write the rows to this CSV file.
    """
    model, config = load(checkpoint)
    if config.threads:
        torch.set_num_threads(config.threads)
    for name in scaling:
        if not usable(config.encoding, [(name, "none")]):
            known = [s for s, _ in usable(config.encoding, [(s, "none") for s in ("none", *RULES)])]
            raise ValueError(f"scaling {name!r} means nothing for encoding {config.encoding!r}: choose from {', '.join(known)}")
    chosen = [parse_size(text) for text in sizes] or [config.size]
    patch = patch_size(model) if hasattr(model, "patch_embed") else (1, 1)
    for height, width in chosen:
        if height % patch[0] or width % patch[1]:
            raise ValueError(f"size {height}x{width} is no multiple of the patch {patch[0]}x{patch[1]}")
    tests = test or config.measured_tests
    count = samples or config.val_samples
    columns = ("test", "size", "scaling", "temperature", "accuracy", "95 %", "images/s", "MB")
    table = Table(*columns, title=f"{checkpoint}: {config.title}")
    rows, rules = [], [(name, factor) for name in scaling for factor in temperature]
    for row in measure(checkpoint, tests, [(size, count) for size in chosen], rules, cli.facts()):
        rows.append(row)
        accuracy, bounds = f"{row.accuracy:.4f}", f"{row.low:.3f} to {row.high:.3f}"
        speed, memory = f"{row.images_per_s:.0f}", f"{row.memory_mb:.0f}"
        table.add_row(row.test, f"{row.height}x{row.width}", row.scaling, row.temperature, accuracy, bounds, speed, memory)
    cli.console.print(table)
    if output is not None:
        write_rows(output, rows)


if __name__ == "__main__":
    cli.run(main, "python -m train.evaluate")
