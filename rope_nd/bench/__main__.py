"""`python -m rope_nd.bench`: what turning, tables and whole models cost here.

- `rotation`: q and k turned, in place on the packed projection and out of place, forward and backward, by this library and
  by others, beside a copy of q and k into a buffer that is there already.
- `tables`: making the tables of 64 x 64 tokens, and asking for them again.
- `scaling`: both against the number of tokens, with a line of least squares (the first of `--dtypes` and of `--layouts`).
- `model`: a step of a ViT with an encoding beside the same without one: the median of the ratios, and its 95 % interval. Slow.

All of one table is measured in turn, in one process. `--json FILE` writes the rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from .. import kernels
from .._command import Parser, check_model, run
from . import rivals, rotation, row, tables
from .timing import least_pairs

PARTS = ("rotation", "tables", "scaling", "model")
WIDTH = 140  # characters of a line at the least


def parser() -> Parser:
    """The options."""
    about = (__doc__ or "").split("\n")[0]
    made = Parser(prog="python -m rope_nd.bench", usage="%(prog)s [options]", description=about)
    add = made.add_argument
    add("--what", nargs="+", choices=PARTS, default=list(PARTS[:3]), help="parts (all but model)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--threads", type=int, help="of the CPU (torch's own choice)")
    add("--rounds", type=int, default=15, help="of rotation, tables and scaling")
    add(
        "--shape", type=int, nargs=4, metavar=tuple("BNHD"), help="of q and k, N with prefix tokens (8 785 6 64; GPU 128 785 12 64)"
    )
    add("--prefix", type=int, default=1, help="prefix tokens among N")
    add(
        "--dtypes",
        nargs="+",
        choices=[row.named(d) for d in rotation.DTYPES],
        help="of rotation (both) and model (the GPU's: bfloat16)",
    )
    add("--layouts", nargs="+", choices=rotation.LAYOUTS, default=list(rotation.LAYOUTS))
    add("--lengths", type=int, nargs="+", default=list(tables.LENGTHS), help="tokens an axis of the grids of scaling")
    model = made.add_argument_group("model").add_argument
    model("--sizes", type=int, nargs="+", default=[224, 448, 896], help="of images, in pixels")
    model("--batch", type=int, help="images a step (2; GPU 64)")
    model("--pairs", type=int, default=30, help="rounds of the model part")
    model("--steps", nargs="+", choices=("inference", "training"), default=["inference", "training"])
    model("--encodings", nargs="+", metavar="NAME", help="axial, axial+jitter, mixed, alibi, pape, timm")
    model("--modes", nargs="+", choices=("eager", "compiled"), default=["eager"])
    model("--model", default="vit_small_patch16_224")
    model("--timm-model", default="vit_small_patch16_rope_224", help="what `timm` is among the encodings")
    model("--depth", type=int, help="blocks of the models (as many as they have)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    return made


def measured(given: argparse.Namespace) -> Iterator[list[row.Row]]:
    """Every part's rows, table by table."""
    device = torch.device(given.device)
    shape = tuple(given.shape or rotation.SHAPES[given.device])
    dtypes = [getattr(torch, name) for name in given.dtypes or [row.named(d) for d in rotation.DTYPES]]
    cases: dict[str, Any] = {"dtypes": dtypes, "layouts": given.layouts, "prefix": given.prefix}
    if "rotation" in given.what:
        yield from rotation.run(shape, device, rounds=given.rounds, **cases)  # type: ignore[arg-type]
    if "tables" in given.what:
        yield from tables.run(shape, device, rounds=given.rounds)  # type: ignore[arg-type]
    if "scaling" in given.what:
        first = {**cases, "dtypes": dtypes[:1], "layouts": given.layouts[:1]}
        yield from tables.scaling(shape, device, rounds=given.rounds, lengths=given.lengths, **first)  # type: ignore[arg-type]
    if "model" in given.what:
        yield from models(given, device)


def models(given: argparse.Namespace, device: torch.device) -> Iterator[list[row.Row]]:
    """The model part, which alone needs timm."""
    from . import model

    own = "float32" if device.type == "cpu" else "bfloat16"
    yield from model.run(
        device,
        pairs=given.pairs,
        sizes=given.sizes,
        batch=given.batch or (2 if device.type == "cpu" else 64),
        encodings=given.encodings or model.ENCODINGS,
        modes=given.modes,
        steps=given.steps,
        dtypes=[getattr(torch, name) for name in given.dtypes or [own]],
        model=given.model,
        timms=given.timm_model,
        depth=given.depth,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    given = parser().parse_args(arguments)
    if "model" in given.what and given.pairs < least_pairs():
        parser().error(f"--pairs {given.pairs}: an interval needs at least {least_pairs()}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser().error("--device cuda: torch finds no GPU here; give --device cpu")
    if "model" in given.what:
        for name in (given.model, given.timm_model):
            check_model(name)
    if given.threads:
        torch.set_num_threads(given.threads)
    found: list[row.Row] = []
    console = Console(width=max(WIDTH, Console().width))
    missing = rivals.installed()[1] if "rotation" in given.what else []
    reason = kernels.load("native").why_not() if given.device == "cpu" else None
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of rounds measured in turn")
    if reason is not None:
        console.print(f"no native kernel: {reason}")
    for rows in measured(given):
        found += rows
        show(console, rows, missing)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


def show(console: Console, rows: Sequence[row.Row], missing: Sequence[str]) -> None:
    """Tables of rows, and what lines were found."""
    groups: dict[str, list[row.Row]] = {}
    for one in rows:
        groups.setdefault(row.group(one), []).append(one)
    for title, members in groups.items():
        console.print(row.table(title, members, missing if members[0].part == "rotation" else ()))
    for line in row.lines(rows):
        console.print(line)


if __name__ == "__main__":
    run(main)
