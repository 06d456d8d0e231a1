"""What trained models lose when attention sees keys of few bits: `python -m train.precision runs/NAME`.

The checkpoints of a study are tested again with the keys of every layer rounded, as a cache of keys would hold them: before they
are turned (and turned when read) or after, with a scale a token or a channel (`rope_nd.precision.quantise`). Queries, values and
all else stay as they are. Absolute and bias encodings have no turning: before and after are the same there, and measured once.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import tyro
from rich.progress import track
from torch import Tensor, nn

from rope_nd import RoPE
from rope_nd.precision import FORMATS, Format, Per, When, quantise
from rope_nd.wrapping import Where
from rope_nd.wrapping.families import wrapped_trunk
from rope_nd.wrapping.model import lead
from train import cli
from train.cases import case
from train.durable import publish
from train.evaluate import score, test_set
from train.modelling import folders_of, load
from train.report import grid
from train.rows import write_csv
from train.rules import usable

COLUMNS = (
    "encoding",
    "seed",
    "test",
    "height",
    "width",
    "scaling",
    "format",
    "per",
    "when",
    "accuracy",
    "images",
    "command",
    "commit",
)
Way = tuple[Format | None, Per, When]


@dataclass(frozen=True)
class Rounded(Where):
    """What blocks are told, with keys rounded on their way."""

    format: Format = field(default="int8", kw_only=True)
    per: Per = field(default="token", kw_only=True)
    when: When = field(default="before", kw_only=True)

    def turn(self, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if self.when == "before":
            return super().turn(q, quantise(k, self.format, per=self.per), layer)
        q, k = super().turn(q, k, layer)
        return q, quantise(k, self.format, per=self.per)


@contextlib.contextmanager
def rounded(model: nn.Module, format: Format, per: Per, when: When) -> Iterator[None]:
    """Within, the wrapped model `model` rounds its keys."""
    inner: Any = wrapped_trunk(model)
    if inner is None:
        raise ValueError(f"{type(model).__name__} is not wrapped: keys can be rounded in wrapped models alone")
    tell = inner._where
    inner._where = lambda *given, **named: Rounded(**vars(tell(*given, **named)), format=format, per=per, when=when)
    try:
        yield
    finally:
        del inner._where


def ways(turns: bool, formats: Sequence[Format]) -> list[Way]:
    """Not rounded; then each format, with a scale a token and a channel, before and (where anything turns) after."""
    per = {name: ("token", "channel") if name.startswith(("int", "e")) else ("token",) for name in formats}
    each = [(name, p, w) for name in formats for p in per[name] for w in (("before", "after") if turns else ("before",))]
    return [(None, "token", "before"), *each]  # type: ignore[list-item]


@torch.inference_mode()
def measure(checkpoint: Path, ratios: Sequence[float], formats: Sequence[Format], samples: int) -> Iterator[dict[str, Any]]:
    """Rows of one checkpoint: tests × sizes × scaling (interpolated above the training size) × ways of rounding."""
    _, config = load(checkpoint)
    if config.kind != "images":
        raise ValueError(f"{checkpoint} is a model of {config.kind}: keys are rounded in models of images alone")
    for test, ratio in itertools.product(config.measured_tests, ratios):
        at = case(config, test, ratio)
        data, _ = test_set(config, at, samples)
        for scaling, *_ in usable(config.encoding, [("none",), ("pi",)] if ratio > 1 else [("none",)]):
            model, _ = load(checkpoint, scaling=scaling)
            inner: Any = wrapped_trunk(model)
            turns = inner is not None and (inner.own_rotary is not None or isinstance(lead(inner.encoding), RoPE))
            for format, per, when in ways(turns, formats):
                with contextlib.nullcontext() if format is None else rounded(model, format, per, when):
                    accuracy = score(model, data, config).accuracy
                what = {"encoding": config.title, "seed": config.seed, "test": test, "height": at.size[-2], "width": at.size[-1]}
                how = {"scaling": scaling, "format": format or "float32", "per": per, "when": when}
                yield {**what, **how, "accuracy": accuracy, "images": len(data)}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: a table for each test, size and scaling; accuracy in %, mean ± std over seeds, a column a way of rounding."""
    lines: list[str] = []
    for group in dict.fromkeys((row["test"], row["height"], row["width"], row["scaling"]) for row in rows):
        own = [row for row in rows if (row["test"], row["height"], row["width"], row["scaling"]) == group]
        columns = list(dict.fromkeys((row["format"], row["per"], row["when"]) for row in own))
        found: dict[tuple[str, Way], list[float]] = {}
        for row in own:
            found.setdefault((row["encoding"], (row["format"], row["per"], row["when"])), []).append(100 * row["accuracy"])
        body = [
            [name, *(_cell(found.get((name, way), [])) for way in columns)]
            for name in dict.fromkeys(row["encoding"] for row in own)
        ]
        heads = ["float32" if name == "float32" else f"{name} a {per}, {when}" for name, per, when in columns]
        lines += [f"## {group[0]} at {group[1]} x {group[2]} px, scaling {group[3]}", "", *grid(["encoding", *heads], body), ""]
    return lines


def _cell(values: Sequence[float]) -> str:
    return "" if not values else f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def main(
    run: tyro.conf.Positional[Path],
    ratios: tuple[float, ...] = (1, 2),
    formats: tuple[Format, ...] = FORMATS,
    samples: int = 1000,
    threads: int | None = None,
) -> None:
    """Test the models of a study with rounded keys; writes precision.csv and precision.md into its folder.

    Args:
        run: Folder of a study, runs/NAME, whose models are tested.
        ratios: Test sizes over the training size.
        formats: What keys are rounded to.
        samples: Test pictures.
        threads: CPU threads.
    """
    if threads:
        torch.set_num_threads(threads)
    checkpoints = folders_of(run)
    facts = cli.facts()
    rows = [
        {**row, **facts}
        for checkpoint in track(checkpoints, "models", console=cli.console, disable=not cli.console.is_terminal)
        for row in measure(checkpoint, ratios, formats, samples)
    ]
    write_csv(run / "precision.csv", COLUMNS, rows)
    text = "\n".join(["# Accuracy with rounded keys", "", *summary(rows)])
    publish(run / "precision.md", text)
    cli.console.print(text)


if __name__ == "__main__":
    cli.run(main, "python -m train.precision")
