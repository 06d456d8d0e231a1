"""What an encoding should be, measured: `python -m rope_nd.properties` prints tables of it and of what rounding does to it.

`--markdown FILE` writes them into FILE, between two marks, and leaves the rest of it as it is; pictures go to the folder of its
name without the suffix.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import tables
from ._check import choose
from ._command import Parser, run
from .absolute import Absolute
from .bias import Bias
from .parabola import PaPE
from .positions import grid
from .registry import ROTARY, Host, list_encodings, make, scalings
from .rope import RoPE
from .tables import Table, commit

HOST = {"dim": 64, "heads": 4, "head_dim": 64, "layers": 1, "prefix_tokens": 0}


@dataclass(frozen=True)
class Properties:
    """A code is what an encoding says of one position (absolute: its vector; rotary: two fixed keys, turned, since matrices have no
    angles; a bias has none, nor have parabolas). A kernel is what it says of two: the score of a query at one and a key at the
    other (absolute: the cosine of their codes; rotary: the mean product of the fixed keys with themselves as queries; bias:
    itself). Of an encoding that differs by head, it is the first. What is measured of them, where it has a meaning:

    - unique: the least distance of two codes, over the mean one, in a line four times as long as the trained one (0: some are
      alike)
    - linear: how far the code at p + 1 is from the best linear map of the code at p, at places that the map was not fitted to
    - beyond: change of the kernel of the same offsets when both tokens lie outside the trained range, over the kernel's spread
    - determined: whether models begun from two seeds have the same kernel
    - isotropy: spread of the kernel over directions at one distance, over its fall from distance zero (0: all directions are alike)
    - crosstalk: how far the kernel is from a sum of one kernel an axis, over its fall from distance zero (0: no axis minds another)
    - noise: root mean square of a code over that of a unit embedding, at the trained length and at four times it
    - smooth: the largest step between the codes of neighbours over the mean distance of any two codes
    """

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


def build(name: str, axes: int, trained: tuple[int, ...], seed: int = 0, **options: Any) -> Any:
    """The encoding of that name, with its random parts drawn from `seed`."""
    if name in ROTARY or name == "fourier":
        options["seed"] = seed
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
    return None if isinstance(enc, (Bias, PaPE)) else turned(enc, points, extent)[1]


def turned(enc: Any, points: Tensor, extent: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Queries and keys v and -v at each position, turned, side by side, `[N, F]` float64.

    v is Rudin's and Shapiro's sequence of signs: all pairs of channels have the same length and no Fourier coefficient is small, so
    that no plane of RoPE or of a circulant matrix is overlooked; with -v, neither is a channel whose sign matters (PoPE).
    """
    signs = torch.tensor([(-1.0) ** (n & n >> 1).bit_count() for n in range(enc.head_dim)], dtype=torch.float64)
    both = torch.stack((signs, -signs))[:, None, None].expand(2, enc.heads or 1, len(points), -1)  # [2, H, N, D]
    q, k = enc(points, extent).qk(both, both)
    return q[:, 0].transpose(0, 1).flatten(1), k[:, 0].transpose(0, 1).flatten(1)


@torch.no_grad()
def kernel(enc: Any, query: Tensor, key: Tensor, extent: tuple[int, ...]) -> Tensor:
    """What the encoding says of each pair, `[Nq, Nk]` float64."""
    if isinstance(enc, Bias):
        return enc(query, key, extent)[0].double().clamp(min=-1e4)  # what is hidden is far away
    if isinstance(enc, RoPE):
        return turned(enc, query, extent)[0] @ turned(enc, key, extent)[1].mT / (2 * enc.head_dim)
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


def report(names: Sequence[str], trained: int) -> list[Table]:
    """All tables, in order."""
    short = (trained, trained)
    built = {name: build(name, 2, short) for name in names}
    turning = {name: enc for name, enc in built.items() if kind_of(enc) == "rotary"}

    def ruled(name: str, rule: str) -> Any:
        return build(name, 2, short, scaling=rule) if rule in scalings(name) else None

    errors = tables.scaled(ruled, names, short)
    found = [
        Table("Properties", inspect.getdoc(Properties), [dict(vars(measure(name, trained))) for name in names]),
        Table("Rounding", inspect.getdoc(tables.rounding), tables.rounding(built, short)),
        Table("Outliers", inspect.getdoc(tables.outliers), tables.outliers(turning, short)),
        Table("Scaling", inspect.getdoc(tables.worth), tables.worth(errors)),
        Table("Bands", inspect.getdoc(tables.bands), tables.bands(errors)),
        Table("Phases", inspect.getdoc(tables.phases), tables.phases()),
    ]
    return [table for table in found if table.rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    known = [name for name in list_encodings() if name != "none"]
    parser = Parser(prog="python -m rope_nd.properties", description="Measure what every encoding is.")
    parser.add_argument("--trained", type=int, default=16, help="tokens an axis of the trained grid")
    parser.add_argument("--encodings", nargs="+", default=known, choices=known, metavar="NAME", help="these only")
    parser.add_argument("--markdown", type=Path, help="write the tables into this file, and pictures to the folder of its name")
    parser.add_argument("--commit", help="what the file says it was made from (by default what git says)")
    given = parser.parse_args(arguments)
    found = report(given.encodings, given.trained)
    print("\n".join(f"{table.title}\n\n{tables.markdown(table.rows)}" for table in found))
    if given.markdown:
        from . import pictures  # which needs matplotlib

        command = shlex.join(["python", "-m", "rope_nd.properties", *(sys.argv[1:] if arguments is None else arguments)])
        made = f"    {command}\n\nCommit {given.commit or commit()}, torch {torch.__version__}, one seed.\n"
        pictures.write(given.markdown.with_suffix(""), given.encodings, found, given.trained)
        tables.write(given.markdown, found, made)


if __name__ == "__main__":
    run(main)
