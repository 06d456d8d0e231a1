"""What features are worth without training a head: cosine to the original, and k-nearest-neighbour accuracy, at several sizes.

    python -m train.evaluate --probe runs/retrofit --data IMAGES --ratios 0.5 1 2 3 4

Compared are the original with its table resized, the same with a softmax temperature, the retrofitted model, and the control: the
original's weights with the encoding in place of the table, untrained. Features are kept on disk, by a digest of the model, the
images and the size, and rows in the run's folder, so that what was killed goes on. Intervals are bootstraps over images, always
with the same draws.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table
from rich.text import Text
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from train import cli
from train.kept import Kept, beside, code, key_of
from train.labelled import labelled
from train.retrofit import model as models
from train.retrofit.distil import Features as Found
from train.retrofit.distil import features, fidelity, normalise, target_size
from train.retrofit.images import whole
from train.rows import write_csv

DRAWS = 1000
COOLER = "original, temperature"
KEPT = "probed.jsonl"  # in the run's folder


@dataclass(frozen=True)
class Row:
    """One model at one size; `_low` and `_high` bound 95 %. `apart`: k-NN less that of the original at the same images."""

    model: str
    size: int
    ratio: float
    images: int
    patches: float
    patches_low: float
    patches_high: float
    pooled: float
    pooled_low: float
    pooled_high: float
    knn: float
    knn_low: float
    knn_high: float
    apart: float
    apart_low: float
    apart_high: float
    target: int
    k: int
    command: str = ""
    commit: str = ""


def right(pooled: Tensor, labels: Tensor, k: int = 5) -> Tensor:
    """Whether each image's label is that of its neighbours `[N]`: the k most alike of the others by cosine, weighted by it.

    `pooled` `[N, C]`. Votes are cosines from -1 to 1 brought to 0 to 1, so that one close neighbour outweighs a far one.
    """
    if len(labels) < 2:
        raise ValueError(f"{len(labels)} images: neighbours need two at least")
    unit = F.normalize(pooled.double(), dim=-1)
    alike = (unit @ unit.T).fill_diagonal_(-2.0)  # [N, N]
    near, which = alike.topk(min(k, len(labels) - 1), dim=-1)
    votes = torch.zeros(len(labels), int(labels.max()) + 1, dtype=torch.float64)
    votes.scatter_add_(1, labels[which], (near + 1) / 2)
    return votes.argmax(-1) == labels


def bounds(values: Tensor, draws: int = DRAWS) -> tuple[float, float, float]:
    """The mean of one number an image `[N]`, and the 2.5 % and 97.5 % quantiles of means of images drawn with replacement."""
    random = torch.Generator().manual_seed(0)
    picked = torch.randint(len(values), (draws, len(values)), generator=random)
    means = values.double()[picked].mean(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return values.double().mean().item(), low, high


def digest(model: nn.Module, *what: object) -> str:
    """Of everything that decides a model's features: values, how it turns, how much of its table, and what else is named."""
    found = hashlib.sha256(repr(what).encode())
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else repr(value).encode())
    return found.hexdigest()[:24]


def stamp(path: Path) -> str:
    """A digest of an image's place, size and time, without reading it."""
    stat = path.stat()
    return hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:24]


class Cache:
    """Features of images on disk, a file each, by the digest of the model and the size; written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, model: nn.Module, name: str, paths: Sequence[Path], size: int) -> Iterator[Found]:
        """Features of each image; those that are not there are made and kept, patch tokens as float16."""
        for path in paths:
            place = self.folder / name / str(size) / f"{stamp(path)}.safetensors"
            if not place.exists():
                self._make(model, path, size, place)
            kept = load_file(place)
            extent = kept["extent"].tolist()
            yield Found(kept["patches"].float(), kept["pooled"], (extent[0], extent[1]))

    def _make(self, model: nn.Module, path: Path, size: int, place: Path) -> None:
        with torch.inference_mode():
            found = features(model, normalise(whole(path, size)[None], model, next(model.parameters()).device))
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f".{os.getpid()}.tmp")
        tensors = {"patches": found.patches.half(), "pooled": found.pooled.float(), "extent": torch.tensor(found.extent)}
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, temporary)
        os.replace(temporary, place)


def candidates(run: Path, temperature: str | float | None = "log") -> tuple[dict[str, tuple[nn.Module, str]], Any]:
    """The models that are compared, each with the digest of all that makes it, the original first; and the run's config."""
    retrofitted, config = models.load(run)
    first = models.original(config)
    turned = (config.encoding, config.encoding_kwargs, config.scaling, models.sizes(config, first), config.trained_tokens)
    found: dict[str, tuple[nn.Module, tuple[object, ...]]] = {
        "original": (models.teacher(first, antialias=config.antialias), (config.antialias,)),
        "retrofitted": (retrofitted, (*turned, config.antialias, config.keep_absolute)),
        "control": (models.student(first, config, strength=1.0, absolute=config.keep_absolute), (*turned, config.keep_absolute)),
    }
    if temperature is not None:
        cooler = models.teacher(first, antialias=config.antialias, temperature=temperature)
        found[COOLER] = (cooler, (config.antialias, temperature))
    return {name: (model, digest(model, config.model, *what)) for name, (model, what) in found.items()}, config


def compare(
    found: dict[str, tuple[nn.Module, str]],
    paths: Sequence[Path],
    labels: Tensor,
    size: int,
    target: int,
    cache: Cache,
    *,
    ratio: float = 1.0,
    k: int = 5,
    kept: Kept | None = None,
    report: Callable[[str], None] = lambda text: None,
    **facts: str,
) -> Iterator[Row]:
    """Rows of every model at one size: cosines to the original at `target`, k-NN with the features of the size itself.

    Those in `kept` are not measured again, and others are put there.
    """
    kept, made = kept or Kept(None), code()
    teacher, first = found["original"]

    @functools.cache
    def base() -> Tensor:
        return right(torch.cat([one.pooled for one in cache.of(teacher, first, paths, size)]), labels, k).double()

    shown = [*map(stamp, paths), labels.tolist()]
    for name, (model, own) in found.items():
        key = key_of(made, name, own, first, shown, size, target, ratio, k)
        entry = kept.get(key)
        if entry is None:
            report(f"{name} at {size} px")
            cosines: list[tuple[Tensor, Tensor]] = []
            pooled: list[Tensor] = []
            for seen, truth in zip(cache.of(model, own, paths, size), cache.of(teacher, first, paths, target)):
                cosines.append(fidelity(seen, truth))
                pooled.append(seen.pooled)
            patches, classes = (torch.cat(part) for part in zip(*cosines))
            hits = right(torch.cat(pooled), labels, k).double()
            each = (*bounds(patches), *bounds(classes), *bounds(hits), *bounds(hits - base()))
            entry = kept.add(key, asdict(Row(name, size, round(ratio, 3), len(paths), *each, target, k, **facts)))
        yield Row(**entry)


def show(rows: Sequence[Row], title: str) -> Table:
    """One line a model and size; each number with its interval in brackets."""
    table = Table("px", "model", "images", "patches", "pooled", "k-NN", "less original", title=title, box=box.SIMPLE)
    for row in rows:
        told = [str(row.size), row.model, str(row.images)]
        for name in ("patches", "pooled", "knn", "apart"):
            low, high = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
            told.append(f"{getattr(row, name):.3f} [{low:.3f} {high:.3f}]")
        table.add_row(*(Text(text) for text in told))
    return table


def probe(
    run: Path,
    data: Path,
    *,
    ratios: Sequence[float] = (0.5, 1, 2, 3, 4),
    sizes: Sequence[int] = (),
    samples: int | None = None,
    temperature: str | None = "log",
    k: int = 5,
    cache: Path = Path("runs/features"),
    output: Path | None = None,
    threads: int | None = None,
    report: Callable[[str], None] = cli.console.print,
) -> list[Row]:
    """Compare a retrofitted model with its original, print the table, write `output` (default: probe.csv in the run's folder)."""
    if threads:
        torch.set_num_threads(threads)
    found, config = candidates(run, temperature)
    first = found["original"][0]
    step, full = models.patch(first), models.pretrained_size(first)
    wanted = list(sizes) or [models.rounded(full * ratio, step) for ratio in ratios]
    if wrong := [size for size in wanted if size < 1 or size % step]:
        raise ValueError(f"size {wrong[0]} is no multiple of the patch {step}: the nearest is {models.rounded(wrong[0], step)}")
    paths, labels = labelled(data, samples)
    facts = cli.facts()
    rows, kept = [], beside(run, KEPT, report)
    for size in wanted:
        target = target_size(size, config.home or (full, full))
        shown = found if size > full else {name: one for name, one in found.items() if name != COOLER}  # the original itself there
        told = {"ratio": size / full, "k": k, "kept": kept, "report": report, **facts}
        for row in compare(shown, paths, labels, size, target, Cache(cache), **told):
            rows.append(row)
            write_csv(output or run / "probe.csv", [field.name for field in fields(Row)], map(asdict, rows))
    cli.console.print(show(rows, f"{run}: {config.model} with {config.encoding}"))
    return rows
