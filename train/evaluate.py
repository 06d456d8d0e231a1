"""`python -m train.evaluate --checkpoint runs/NAME --sizes 32 64 48x96 --scaling none pi yarn`: any sizes, rules, temperatures."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor, nn

from rope_nd.scaling import RULES
from train import cli
from train.answers import rest
from train.cases import Case, own, places
from train.config import DRAWN, Config, Test
from train.data import Drawn, drawn, loader, stored
from train.durable import digest
from train.fingerprint import fingerprint
from train.kept import Kept, beside, code, key_of
from train.meter import Meter
from train.modelling import load, normalise, token_size
from train.probe import probe as probe_features
from train.rows import COSTS, Row, write_rows
from train.rules import READINGS, TIME, Rule, reader, usable
from train.sizes import cases_of, parse_size
from train.streams import Picked, Stream

TOKENS = 8192  # a batch holds about this many tokens, at every size
NUMBERS = "accuracy", "low", "high", "images", *COSTS
KEPT = "evaluated.jsonl"  # beside the model


Planned = tuple[Case, int, Sequence[Sequence[str]]]  # a case, the number of its inputs, and rules


@dataclass(frozen=True)
class Score:
    """Which inputs were right `[N]`, and what they cost: `train.rows.COSTS`."""

    right: Tensor
    costs: dict[str, float]

    @property
    def accuracy(self) -> float:
        return self.right.double().mean().item()


@functools.lru_cache(maxsize=32)
def _in_memory(config: Config, at: Case, samples: int, crop: bool) -> tuple[Any, Tensor]:
    """Test inputs, the same for every model of a study, and the font cluster of each (where there are none, its number)."""
    source = drawn(config, at, split=config.measured_split, samples=samples, **({"crop": True} if crop else {}))
    groups = getattr(source, "clusters", None)
    return (source, torch.arange(samples)) if groups is None else (Drawn.draw([source]), groups)


def test_set(config: Config, at: Case, samples: int, crop: bool = False) -> tuple[Any, Tensor]:
    """Test inputs of a case, and their groups for the bootstrap (font clusters; single inputs elsewhere)."""
    if config.dataset in DRAWN:
        known = ("dataset", "img_size", "classes", "val_split", "question", "frames", "fps")  # what the inputs depend on
        return _in_memory(Config(**{name: getattr(config, name) for name in known}), at.inputs, samples, crop)
    data = stored(config, at, split=config.measured_split)
    total = data.count() if isinstance(data, Stream) else len(data)
    count = min(samples, total)
    spread = [i * total // count for i in range(count)]  # for files come class by class
    return Picked(data, spread) if isinstance(data, Stream) else torch.utils.data.Subset(data, spread), torch.arange(count)


@torch.inference_mode()
def score(model: nn.Module, data: Any, config: Config, **told: Any) -> Score:
    """Run the model over all inputs, in order, in batches whose size depends on theirs alone; `told`: see `cases.places`."""
    device = torch.device(config.device)
    model = model.to(device).eval()
    samples = data[0][0].shape[1:].numel()
    batch = max(1, min(256, TOKENS * prod(token_size(model)) // samples))
    indices = [list(range(i, min(i + batch, len(data)))) for i in range(0, len(data), batch)]
    meter, right, answers = Meter(device), [], rest(config)

    def answer(images: Tensor, where: Sequence[Any]) -> Tensor:
        with torch.autocast(device.type, getattr(torch, config.amp_dtype), enabled=config.amp):
            return model(normalise(images, device), **own(told, where))[..., :answers].argmax(-1).cpu()

    for images, labels, *where in loader(data, data.keyed(indices) if isinstance(data, Picked) else indices, config.workers):
        right.append(meter.run(functools.partial(answer, images, where), len(labels)) == labels)
    return Score(torch.cat(right), meter.columns)


def interval(right: Tensor, groups: Tensor, draws: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the accuracy, resampling whole groups (font clusters), always with the same draws."""
    _, which = np.unique(groups.numpy(), return_inverse=True)
    hits, sizes = np.bincount(which, right.double().numpy()), np.bincount(which)
    picked = np.random.default_rng(0).integers(len(sizes), size=(draws, len(sizes)))
    low, high = np.quantile(hits[picked].sum(1) / sizes[picked].sum(1), [0.025, 0.975])
    return float(low), float(high)


def measure(checkpoint: Path, plan: Iterable[Planned], facts: dict[str, str], kept: Kept | None = None) -> Iterator[Row]:
    """Rows of one checkpoint: cases × rules; those in `kept` are not measured again, and others are put there.

    Rules that lead to the same tables (all of them at the training size) give the same numbers, and are run once.
    """
    kept = kept or Kept(None)
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    _, config = load(checkpoint)
    made = digest(_weights(checkpoint)), json.loads(config.to_json()), code()
    for at, samples, rules in plan:
        upper = functools.cache(lambda at=at, samples=samples: _on_crops(checkpoint, at, samples))
        for rule in (Rule(*rule) for rule in rules):
            key = key_of(*made, dataclasses.asdict(at), samples, rule)
            entry = kept.get(key)
            if entry is None:
                numbers, tables = _under(checkpoint, at, samples, rule, known)
                what = {"encoding": config.title, "seed": config.seed, "test": at.test, **at.column(config.kind)._asdict()}
                row = Row(**what, **rule._asdict(), **numbers, upper=upper() if at.test == "canvas" else None, **facts)
                entry = kept.add(key, {"row": dataclasses.asdict(row), "tables": tables})
            found = Row(**entry["row"])
            known.setdefault(_place(at, samples, entry["tables"]), {name: getattr(found, name) for name in NUMBERS})
            yield found


def _under(
    checkpoint: Path, at: Case, samples: int, rule: Rule, known: dict[tuple[Any, ...], dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """The numbers of one case under one rule, which may be known from another rule, and what tells rules apart."""
    model, config = load(checkpoint, scaling=rule.scaling, temperature=rule.temperature)
    told = places(config, at, rule.positions)
    apart = sorted(told) if config.dataset == "volumes" else []  # tables of each sample's own spacing
    windowed = [rule.scaling] if rule.scaling in READINGS and at.size != config.size else []
    tables = " ".join([fingerprint(model, at.size, **told).hex(), *windowed, *apart])
    found = known.get(_place(at, samples, tables))
    return (_numbers(reader(model, rule, config.size, rest(config)), config, at, samples, told) if found is None else found), tables


def _place(at: Case, samples: int, tables: str) -> tuple[Any, ...]:
    return at.inputs, samples, tables


def _weights(checkpoint: Path) -> Path:
    return checkpoint if checkpoint.suffix == ".safetensors" else checkpoint / "model.safetensors"


def _numbers(model: nn.Module, config: Config, at: Case, samples: int, told: dict[str, Any]) -> dict[str, Any]:
    data, groups = test_set(config, at, samples)
    result = score(model, data, config, **told)
    low, high = interval(result.right, groups)
    return {
        "accuracy": result.accuracy,
        "low": low,
        "high": high,
        "images": len(result.right),
        **result.costs,
    }


def _on_crops(checkpoint: Path, at: Case, samples: int) -> float | None:
    """The upper bound on the canvas: the same model, at its training size, on the true crop of the same pictures, if it has one."""
    model, config = load(checkpoint)
    if config.dataset != "glyphs":
        return None
    return score(model, test_set(config, at, samples, crop=True)[0], config).accuracy


def main(
    checkpoint: Path | None = None,
    sizes: tuple[str, ...] = (),
    scaling: tuple[str, ...] = ("none",),
    temperature: tuple[str, ...] = ("none",),
    positions: tuple[Literal["index", "units"], ...] = (),
    test: tuple[Test, ...] = (),
    samples: int | None = None,
    output: Annotated[Path | None, tyro.conf.arg(metavar="CSV")] = None,
    probe: Path | None = None,
    data: Path | None = None,
    ratios: tuple[float, ...] = (0.5, 1, 2, 3, 4),
) -> None:
    """Evaluate a trained model at other sizes, or (with --probe) the features of a retrofit, without a head.

    Args:
        checkpoint: Folder with model.safetensors and config.json, as python -m train writes it.
        sizes: Pixels, 224 or 320x448 (height x width), with frames 16x64x64; voxels, 32 or 8x32x32; default the training size.
        scaling: Rules for sizes above the trained one: none, pi, ntk, yarn, ...; along time alone: "time yarn".
        temperature: Factors on the attention scores: none, log, yarn.
        positions: For clips and volumes, index (frames, voxels) or units (seconds, millimetres); default as in training.
        test: What a size is: zoom (more pixels), canvas (a larger field), longer or rate (more frames), slices (fewer of them);
            default all that the run has.
        samples: Number of test inputs (default: as in training).
        output: Also write the rows to this CSV file.
        probe: Folder of a retrofit: its features against those of its original.
        data: For --probe, labelled images, a folder a class.
        ratios: For --probe, sizes over the pretrained one, where --sizes gives none.
    """
    if probe is not None:
        if data is None:
            raise ValueError("--probe needs --data: labelled images, a folder a class")
        pixels = [parse_size(text)[0] for text in sizes]
        probe_features(probe, data, ratios=ratios, sizes=pixels, samples=samples, output=output)
        return
    if checkpoint is None:
        raise ValueError("give --checkpoint FOLDER, or --probe FOLDER with --data")
    model, config = load(checkpoint)
    if config.threads:
        torch.set_num_threads(config.threads)
    for name in scaling:
        if not usable(config.encoding, [(name,)]) or (config.kind == "images" and name.startswith(TIME)):
            known = [rule.scaling for rule in usable(config.encoding, [(s,) for s in ("none", *RULES, *READINGS)])]
            raise ValueError(f"scaling {name!r} means nothing for encoding {config.encoding!r}: choose from {', '.join(known)}")
    token = token_size(model) if hasattr(model, "patch_embed") else ()
    cases = cases_of(config, test or config.measured_tests, sizes, token)
    rules = [Rule(*rule) for rule in itertools.product(scaling, temperature, positions or (config.positions,))]
    columns = ("test", "size", "scaling", "temperature", "positions", "accuracy", "95 %", "ms/input", "MB")
    table, rows = Table(*columns, title=f"{checkpoint}: {config.title}"), []
    kept = beside(_weights(checkpoint).parent, KEPT, cli.console.print)
    if kept.entries:
        told = f"what {kept.path} holds is not measured again, {len(kept.entries)} rows; delete it to measure all"
        cli.console.print(told, soft_wrap=True)
    for row in measure(checkpoint, [(at, samples or config.val_samples, rules) for at in cases], cli.facts(), kept):
        rows.append(row)
        accuracy, bounds = f"{row.accuracy:.4f}", f"{row.low:.3f} to {row.high:.3f}"
        how = row.scaling, row.temperature, row.positions
        table.add_row(row.test, row.size.label(row.test), *how, accuracy, bounds, f"{row.ms_per_input:.2f}", f"{row.peak_mb:.0f}")
    cli.console.print(table)
    if output is not None:
        write_rows(output, rows)


if __name__ == "__main__":
    cli.run(main, "python -m train.evaluate")
