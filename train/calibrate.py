"""`python -m train.calibrate runs/STUDY`: does `rope_nd.calibrate` choose better rules than any fixed one? On images of a study."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from rope_nd.calibration import CANDIDATES, calibrate, under
from train import cli
from train.answers import rest
from train.cases import case
from train.config import Config
from train.data import drawn
from train.durable import publish
from train.modelling import folders_of, load, normalise

CALIBRATED = "calibrated"


def main(
    study: tyro.conf.Positional[Path],
    models: tuple[str, ...] = (),
    ratios: tuple[float, ...] = (1.5, 2, 3, 4),
    images: int = 64,
    samples: int = 200,
    output: Path | None = None,
    threads: int | None = None,
) -> None:
    """Choose a rule for every model, test and size of a study without labels, and compare with each rule for all of them.

    Args:
        study: A run of train.extrapolate on glyphs.
        models: Folders in it (default: all).
        ratios: Sizes over the training size.
        images: Unlabelled pictures that the choice is made on, of the validation fonts.
        samples: Test pictures that accuracy is measured on.
        output: Write the rows there, as JSON lines.
        threads: Of torch.
    """
    if threads:
        torch.set_num_threads(threads)
    plan = [(folder, test, ratio) for folder in folders_of(study, models) for test in ("zoom", "canvas") for ratio in ratios]
    rows = [one(*at, images, samples) for at in track(plan, description="calibrating", console=cli.console)]
    if output is not None:
        publish(output, "".join(json.dumps({**row, **cli.facts()}) + "\n" for row in rows))
    cli.console.print(table(rows))


def one(folder: Path, test: Any, ratio: float, images: int, samples: int) -> dict[str, Any]:
    """The choice and the accuracy of every candidate, for one model at one size of one test."""
    model, config = load(folder)
    if config.dataset != "glyphs":
        raise ValueError(f"{folder}: trained on {config.dataset}; calibration is measured on glyphs")
    nothing, at = rest(config), case(config, test, ratio)
    unlabelled, _ = pictures(config, at, "val", images)
    began = time.perf_counter()
    found = calibrate(model.eval(), unlabelled, rest=nothing)
    seconds = time.perf_counter() - began
    inputs, labels = pictures(config, at, "test", samples)
    accuracies = {name: accuracy(under(model, name, rest=nothing), inputs, labels, nothing) for name in CANDIDATES}
    where = {"model": folder.name, "test": test, "ratio": ratio}
    return {**where, "chosen": found.name, "seconds": round(seconds, 1), "stays": found.stays, "accuracy": accuracies}


def pictures(config: Config, at: Any, split: str, count: int) -> tuple[Tensor, Tensor]:
    data = drawn(config, at, split=split, samples=count)
    inputs, labels = data.batch(range(count))
    return normalise(inputs, "cpu"), labels


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor, classes: int | None, batch: int = 32) -> float:
    """The share of right answers among the first `classes`, or all."""
    right = [model(x)[:, :classes].argmax(-1) == y for x, y in zip(inputs.split(batch), labels.split(batch))]
    return torch.cat(right).double().mean().item()


def table(rows: list[dict[str, Any]]) -> Table:
    """Mean accuracy (%) of each fixed rule, of the choice, and of the best rule for each model and size; by test, and in all."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        each = {**row["accuracy"], CALIBRATED: row["accuracy"][row["chosen"]], "best of each": max(row["accuracy"].values())}
        for test in (row["test"], "all"):
            found[test].append(each)
    names = [*CANDIDATES, CALIBRATED, "best of each"]
    made = Table("test", "choices", *names, title="accuracy (%), mean over models and sizes")
    for test, cells in found.items():
        made.add_row(test, str(len(cells)), *(f"{100 * sum(cell[name] for cell in cells) / len(cells):.1f}" for name in names))
    slowest = max(row["seconds"] for row in rows)
    made.caption = f"the slowest choice took {slowest} s"
    return made


if __name__ == "__main__":
    cli.run(main, "python -m train.calibrate")
