"""`python -m train.breaks runs/STUDY`: what changes inside a model at larger sizes, and so what breaks first.

Three numbers of each layer's attention, means over pictures, heads and patches that ask:

- entropy: over that of looking everywhere alike; it rises where attention is diluted;
- distance: how far off a patch looks, in patches; with positions that reach as far as in training it stays, and grows with the
  field where nothing holds it;
- spread: the standard deviation of a patch's scores over the keys, in nats; it falls where queries and keys no longer meet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
import tyro
from matplotlib.axes import Axes
from rich.progress import track
from torch import Tensor

from rope_nd.watch import Watch, distance, entropy
from train import cli, figures
from train.answers import rest
from train.calibrate import pictures
from train.cases import case
from train.durable import publish
from train.modelling import folders_of, load, token_size
from train.rows import write_csv
from train.rules import usable

PANELS = {
    "accuracy": "right answers (%)",
    "entropy": "entropy of attention, 1: everywhere alike",
    "distance": "distance of attention (patches)",
    "spread": "spread of scores (nats)",
}


@dataclass(frozen=True)
class Seen:
    """One layer of one model at one size of a test; the fields are the columns of the CSV file. Accuracy is the whole model's."""

    encoding: str
    seed: int
    test: str
    ratio: float
    scaling: str
    layer: int
    images: int
    accuracy: float
    entropy: float
    distance: float
    spread: float

    @property
    def curve(self) -> str:
        return self.encoding if self.scaling == "none" else f"{self.encoding}, {self.scaling}"


def main(
    study: tyro.conf.Positional[Path],
    models: tuple[str, ...] = (),
    tests: tuple[Literal["zoom", "canvas"], ...] = ("zoom", "canvas"),
    ratios: tuple[float, ...] = (1, 1.5, 2, 3, 4, 8),
    scaling: tuple[str, ...] = ("none", "pi"),
    samples: int = 64,
    output: Path | None = None,
    threads: int | None = None,
) -> None:
    """Look into the models of a study at every size; write breaks.csv and a picture a test.

    Args:
        study: A run of train.extrapolate on glyphs.
        models: Folders in it (default: all).
        tests: What a size is: zoom (more pixels of the same), canvas (a larger field).
        ratios: Sizes over the training size.
        scaling: Rules to look at.
        samples: Test pictures.
        output: Folder for what is written (default: the study's).
        threads: Of torch.
    """
    if threads:
        torch.set_num_threads(threads)
    plan = [(folder, test, ratio) for folder in folders_of(study, models) for test in tests for ratio in ratios]
    rows = [row for at in track(plan, description="looking", console=cli.console) for row in one(*at, scaling, samples)]
    folder, facts = output or study, cli.facts()
    write_csv(folder / "breaks.csv", [*dataclasses.asdict(rows[0]), *facts], ({**dataclasses.asdict(row), **facts} for row in rows))
    for test in tests:
        publish(folder / f"breaks-{test}.png", picture([row for row in rows if row.test == test]))
    cli.console.print(f"breaks.csv and {', '.join(f'breaks-{test}.png' for test in tests)} in {folder}", soft_wrap=True)


def one(folder: Path, test: Any, ratio: float, scaling: Sequence[str], samples: int) -> list[Seen]:
    """The layers of one model at one size, under each rule that means something for it."""
    _, config = load(folder)
    if config.dataset != "glyphs":
        raise ValueError(f"{folder}: trained on {config.dataset}; this looks at models of glyphs")
    at, found = case(config, test, ratio), []
    inputs, labels = pictures(config, at, "test", samples)
    for rule in usable(config.encoding, [(name,) for name in scaling]):
        model, _ = load(folder, scaling=rule.scaling)
        extent = tuple(n // of for n, of in zip(at.size, token_size(model)))
        guesses, layers = look(model.eval(), inputs, extent)
        right = (guesses[:, : rest(config)].argmax(-1) == labels).double().mean().item()
        told = {"encoding": config.title, "seed": config.seed, "test": test, "ratio": ratio, "scaling": rule.scaling}
        found += [Seen(**told, layer=i, images=samples, accuracy=right, **layer) for i, layer in enumerate(layers)]
    return found


@torch.no_grad()
def look(model: Any, inputs: Tensor, extent: tuple[int, ...], batch: int = 4) -> tuple[Tensor, list[dict[str, float]]]:
    """Logits of `inputs` `[B, C, H, W]`, and for each layer entropy, distance and spread; `extent`: patches along each axis."""
    prefix, logits, parts = getattr(model, "num_prefix_tokens", 0), [], []
    for part in inputs.split(batch):
        with Watch() as seen:
            logits.append(model(part))
        parts.append([measures(shares, extent, prefix) * len(part) for shares in seen.layers])
    sums = [torch.stack(of_layer).sum(0) / len(inputs) for of_layer in zip(*parts)]
    return torch.cat(logits), [dict(zip(("entropy", "distance", "spread"), layer.tolist())) for layer in sums]


def measures(shares: Tensor, extent: tuple[int, ...], prefix: int) -> Tensor:
    """Entropy, distance and spread `[3]` of attention `[B, H, N, N]`, means over the patches that ask."""
    asking = range(prefix, shares.shape[-1])
    shares = shares[:, :, prefix:]
    scores = shares.log()  # but for a constant of each query
    met = scores.isfinite()  # some biases hide keys
    count = met.sum(-1)
    centred = scores.where(met, 0) - (scores.where(met, 0).sum(-1) / count)[..., None]
    spread = (centred.where(met, 0).square().sum(-1) / count).sqrt()
    each = entropy(shares), distance(shares, asking, extent, prefix), spread
    return torch.stack([number.double().mean() for number in each])


def picture(rows: Sequence[Seen]) -> bytes:
    """A PNG: a panel for accuracy and one a measure (mean over layers and seeds), against the size."""
    curves = list(dict.fromkeys(row.curve for row in rows))

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (column, title) in zip(panels, PANELS.items()):
            entries = []
            for curve, (colours, marker) in figures.looks(curves).items():
                own = [row for row in rows if row.curve == curve]
                ratios = sorted({row.ratio for row in own})
                values = [mean(getattr(row, column) for row in own if row.ratio == ratio) for ratio in ratios]
                scale = 100 if column == "accuracy" else 1
                look: dict[str, Any] = {"color": colours[0], "marker": marker, "markersize": 4.5, "linewidth": 1.7}
                entries.append((tuple(axes.plot(ratios, [scale * value for value in values], **look)), curve))
            axes.set(title=title, xlabel="size over the training size", ylim=(0, None))
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks := sorted({row.ratio for row in rows}), [f"×{ratio:g}" for ratio in ticks], minor=False)
            axes.minorticks_off()
            axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
            figures.legend_under(axes, entries if column == "accuracy" else [])

    return figures.png(figures.figure(len(PANELS), len(curves), draw))


if __name__ == "__main__":
    cli.run(main, "python -m train.breaks")
