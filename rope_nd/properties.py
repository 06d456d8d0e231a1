"""What an encoding should be, measured: `python -m rope_nd.properties` prints the table, `--markdown FILE` writes it.

A code is what an encoding says of one position (absolute: its vector; rotary: cosines and sines of its angles; a bias has none).
A kernel is what it says of two: the score of a query at one and a key at the other (absolute: the cosine of their codes; rotary:
the product of vectors of ones, turned, a channel; bias: itself). What is measured of them:

- unique: the least distance of two codes, over the mean one, in a grid four times as long as the trained one (0: some are alike)
- linear: how far the code at p + 1 is from the best linear map of the code at p, at places that the map was not fitted to
- beyond: change of the kernel of the same offsets when both tokens lie outside the trained range, over the kernel's spread
- determined: whether models begun from two seeds have the same codes (no random and no learned part)
- isotropy: spread of the kernel over directions at one distance, over its fall from distance zero (0: all directions are alike)
- crosstalk: how far the kernel is from a sum of one kernel an axis, over its fall from distance zero (0: no axis minds another)
- noise: root mean square of a code over that of a unit embedding, at the trained length and at four times it
- smooth: the largest step between the codes of neighbours over the mean distance of any two codes
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ._check import choose
from .absolute import Absolute
from .bias import Bias
from .parabola import PaPE
from .positions import grid
from .registry import ROTARY, Host, list_encodings, make
from .rope import RoPE

HOST = {"dim": 64, "heads": 4, "head_dim": 64, "layers": 1, "prefix_tokens": 0}


@dataclass(frozen=True)
class Properties:
    """The measures of one encoding; None where one has no meaning."""

    name: str
    kind: str
    unique: float | None
    linear: float | None
    beyond: float | None
    determined: bool
    isotropy: float | None
    crosstalk: float | None
    noise: float | None
    noise_beyond: float | None
    smooth: float | None


def build(name: str, axes: int, trained: tuple[int, ...], seed: int = 0) -> Any:
    """The encoding of that name, with its random parts drawn from `seed`."""
    options = {"seed": seed} if name in ROTARY or name == "fourier" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make(name, axes, Host(trained_extent=trained, **HOST), **options)  # type: ignore[arg-type]
    return made[0] if isinstance(made, nn.ModuleList) else made


def kind_of(enc: Any) -> str:
    """The insertion point of an encoding."""
    kinds = {"absolute": Absolute, "bias": Bias, "rotary": RoPE}
    return next(kind for kind, cls in kinds.items() if isinstance(enc, cls))


@torch.no_grad()
def code(enc: Any, points: Tensor, extent: tuple[int, ...]) -> Tensor | None:
    """What the encoding says of each position, `[N, F]` float64."""
    if isinstance(enc, Absolute):
        return enc(points, extent).double()
    if isinstance(enc, (Bias, PaPE)):  # functions of two positions
        return None
    rotation = enc(points, extent)
    cos, sin = (t if t.ndim == 2 else t[0] for t in (rotation.cos.double(), rotation.sin.double()))  # the first head
    return torch.cat((cos, sin), dim=-1)


@torch.no_grad()
def kernel(enc: Any, query: Tensor, key: Tensor, extent: tuple[int, ...]) -> Tensor:
    """What the encoding says of each pair, `[Nq, Nk]` float64."""
    if isinstance(enc, Bias):
        return enc(query, key, extent)[0].double().clamp(min=-1e4)  # the first head; what is hidden is far away
    if isinstance(enc, RoPE):  # of a query and a key that are one in every channel
        ones = [torch.ones(1, enc.heads or 1, len(points), enc.head_dim) for points in (query, key)]
        turned = enc(query, extent).qk(ones[0], ones[0])[0], enc(key, extent).qk(ones[1], ones[1])[1]
        return (turned[0].double() @ turned[1].double().mT)[0, 0] / enc.head_dim
    first, second = (enc(points, extent).double() for points in (query, key))
    scale = first.norm(dim=-1)[:, None] * second.norm(dim=-1)
    return first @ second.mT / scale.clamp(min=1e-12)


def distances(codes: Tensor) -> Tensor:
    """Of every two codes, `[N (N - 1) / 2]`."""
    return torch.nn.functional.pdist(codes)


def linear_residual(enc: Any, trained: int, axes: int) -> float:
    """|C M - C'| / |C'| of the least squares M from codes at p to codes at p + 1 along the first axis.

    M is fitted at 256 places within the trained grid, whole or not, and tested at 128 others.
    """
    draw = torch.Generator().manual_seed(0)
    places = torch.rand(384, axes, generator=draw, dtype=torch.float64) * (trained - 1)
    places[:, 0] *= (trained - 2) / (trained - 1)
    step = torch.zeros(axes, dtype=torch.float64)
    step[0] = 1
    here, there = (code(enc, at, (trained,) * axes) for at in (places, places + step))
    if here is None or there is None:
        raise ValueError(f"{type(enc).__name__} has no code of one position")
    solved = torch.linalg.lstsq(here[:256], there[:256], driver="gelsd").solution
    return ((here[256:] @ solved - there[256:]).norm() / there[256:].norm().clamp(min=1e-12)).item()


def measure(name: str, trained: int = 16, axes: int = 2) -> Properties:
    """The properties of the encoding of that name, trained on a grid of `trained` tokens an axis."""
    choose("encoding with properties", name, [known for known in list_encodings() if known != "none"])
    enc, again = build(name, axes, (trained,) * axes), build(name, axes, (trained,) * axes, seed=1)
    kind, long = kind_of(enc), 4 * trained
    line = torch.zeros(long, axes, dtype=torch.float64)
    line[:, 0] = torch.arange(long)
    short, far = (trained,) * axes, (long,) * axes
    found: dict[str, Any] = dict.fromkeys("unique linear beyond isotropy crosstalk noise noise_beyond smooth".split())
    inside, outside = code(enc, line[:trained], short), code(enc, line, far)
    if inside is not None and outside is not None:
        apart = distances(outside)
        found["unique"] = (apart.min() / apart.mean().clamp(min=1e-12)).item()
        found["linear"] = linear_residual(enc, trained, axes)
        found["noise"] = inside.square().mean().sqrt().item() if kind == "absolute" else None
        found["noise_beyond"] = outside.square().mean().sqrt().item() if kind == "absolute" else None
        found["smooth"] = ((inside[1:] - inside[:-1]).norm(dim=-1).max() / distances(inside).mean().clamp(min=1e-12)).item()
    found["beyond"] = _beyond(enc, trained, axes)
    if axes == 2:
        found["isotropy"], found["crosstalk"] = _isotropy(enc, trained), _crosstalk(enc, trained)
    points = grid(*short, dtype=torch.float64)
    determined = torch.equal(kernel(enc, points, points, short), kernel(again, points, points, short))
    return Properties(name, kind, determined=determined, **found)


def _beyond(enc: Any, trained: int, axes: int) -> float:
    """Change of the kernel of the same offsets, both tokens moved by twice the trained length along each axis."""
    points = grid(*(trained,) * axes, dtype=torch.float64)
    extent = (3 * trained,) * axes
    inside = kernel(enc, points, points, extent)
    outside = kernel(enc, points + 2 * trained, points + 2 * trained, extent)
    return ((outside - inside).abs().mean() / (inside - inside.mean()).abs().mean().clamp(min=1e-12)).item()


def _isotropy(enc: Any, trained: int) -> float:
    """Spread of the kernel over 16 directions at distances up to a quarter of the grid, over its fall from distance zero."""
    centre = torch.full((1, 2), trained / 2, dtype=torch.float64)
    turn = torch.arange(16, dtype=torch.float64) * (torch.pi / 8)
    circle = torch.stack((turn.sin(), turn.cos()), dim=-1)  # [16, 2]
    here = kernel(enc, centre, centre, (trained, trained))
    spread, fall = [], []
    for radius in range(1, trained // 4 + 1):
        around = kernel(enc, centre, centre + radius * circle, (trained, trained))
        spread.append(around.std())
        fall.append((here[0, 0] - around.mean()).abs())
    return (torch.stack(spread).sum() / torch.stack(fall).sum().clamp(min=1e-12)).item()


def _crosstalk(enc: Any, trained: int) -> float:
    """Mean of |K(dy, dx) - K(dy, 0) - K(0, dx) + K(0, 0)| over offsets, over that of |K(dy, dx) - K(0, 0)|."""
    offsets = grid(trained // 2, trained // 2, dtype=torch.float64)
    values = kernel(enc, torch.zeros(1, 2, dtype=torch.float64), offsets, (trained, trained))
    square = values.view(trained // 2, trained // 2)
    off = square - square[:, :1] - square[:1, :] + square[0, 0]
    return (off.abs().mean() / (square - square[0, 0]).abs().mean().clamp(min=1e-12)).item()


def table(trained: int = 16) -> list[Properties]:
    """The properties of every encoding but none, in two axes."""
    return [measure(name, trained) for name in list_encodings() if name != "none"]


def markdown(found: Sequence[Properties]) -> str:
    """The measures as a table; a dash where one has no meaning."""
    names = list(vars(found[0]))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in found:
        shown = ("-" if v is None else f"{v:.2g}" if isinstance(v, float) else str(v) for v in vars(row).values())
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rope_nd.properties", description="Measure what every encoding is.")
    parser.add_argument("--trained", type=int, default=16, help="tokens an axis of the trained grid")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    given = parser.parse_args(arguments)
    text = markdown(table(given.trained))
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
