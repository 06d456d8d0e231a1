"""What rounding does to every encoding, in rows, and the page that they are written to.

A table's caption is the docstring of what makes its rows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch

from .absolute import Absolute
from .bias import Bias
from .precision import FORMATS, TOPS, WHENS, Per, ScoreError, phase_error, score_error

Row = dict[str, Any]  # text, numbers, None where there is no value
START, END = "<!-- measured: the command writes from here -->", "<!-- to here -->"
PICTURES = {
    "Properties": (
        (
            "kernels",
            "Kernels of the query in the middle of a grid twice as long as the trained one (absolute) or four times (bias, "
            "rotary); framed is what is trained, positions or offsets",
        ),
        ("codes", "Codes along the first axis; trained positions are left of the dashed line"),
    ),
    "Rounding": (("precision", "The first two tables: errors by format, and by how much rounding after the turning changes them"),),
}


@dataclass(frozen=True)
class Table:
    """Rows with the same columns, and what they mean."""

    title: str
    caption: str | None
    rows: list[Row]

    def section(self, folder: Path) -> str:
        """The section of a page, with those of its pictures that are in `folder`."""
        here = [
            (f"{folder.name}/{name}.png", text) for name, text in PICTURES.get(self.title, ()) if (folder / f"{name}.png").exists()
        ]
        shown = [f"![{text}]({file})\n\n{text}.\n" for file, text in here]
        return "\n".join([f"## {self.title}\n", f"{self.caption}\n", *shown, markdown(self.rows)])


def rounding(encodings: Mapping[str, Any], extent: tuple[int, ...]) -> list[Row]:
    """Error of the scores over the scores, root mean squares, in per cent.

    Queries and keys are normal, and both are rounded, with a scale a token, before the encoding turns them or after; where nothing
    is turned there is one place. Scores of absolute and bias encodings, and of PoPE, have a part that all contents share: the
    larger it is, the smaller the error beside it.
    """
    rows = []
    for name, enc in encodings.items():
        row: Row = {"name": name}
        for format, when in product(FORMATS, WHENS):
            same = when == "after" and isinstance(enc, (Absolute, Bias))
            row[f"{format} {when}"] = None if same else 100 * score_error(enc, format, extent=extent, when=when).relative
        rows.append(row)
    return rows


def outliers(encodings: Mapping[str, Any], extent: tuple[int, ...]) -> list[Row]:
    """By how many per cent an error is larger when rounded after the turning than when rounded before; below zero, after is better.

    Four of the keys' 64 channels are eight times larger than the others. The scale is one a token or one a channel.
    """
    rows = []
    for name, enc in encodings.items():
        row: Row = {"name": name}
        for per, format in product(get_args(Per), TOPS):
            before, after = (score_error(enc, format, extent=extent, when=when, per=per, outliers=4).relative for when in WHENS)
            row[f"{format} a {per}"] = 100 * (after / before - 1)
        rows.append(row)
    return rows


def scaled(
    build: Callable[[str, str], Any], names: Sequence[str], trained: tuple[int, ...]
) -> dict[str, dict[str, ScoreError | None]]:
    """int4 errors at the trained size (x1) and four times it (x4), by encoding and rule; `build` gives None where there is none."""
    cases = {"x1": ("none", 1), "x4": ("none", 4), "x4 pi": ("pi", 4), "x4 ntk": ("ntk", 4), "x4 yarn": ("yarn", 4)}
    found: dict[str, dict[str, ScoreError | None]] = {name: {} for name in names}
    for name, (column, (rule, size)) in product(names, cases.items()):
        enc, extent = build(name, rule), tuple(size * n for n in trained)
        found[name][column] = None if enc is None else score_error(enc, "int4", extent=extent)
    return found


def worth(errors: Mapping[str, Mapping[str, ScoreError | None]]) -> list[Row]:
    """How many tokens of distance an error is worth: the error over what moving the keys by one token changes in the scores.

    Queries and keys rounded to int4 before the turning, with a scale a token; at the trained size (x1) and on a grid four times as
    long (x4), as it is and with a rule.
    """
    return [{"name": name} | {column: e and e.tokens for column, e in row.items()} for name, row in errors.items()]


def bands(errors: Mapping[str, Mapping[str, ScoreError | None]]) -> list[Row]:
    """The same for the products of the fastest (f) and the slowest (s) quarter of a head's pairs, each by itself."""
    rows = []
    for name, row in errors.items():
        pairs = {column: e.bands for column, e in row.items() if e and e.bands}
        ends = {f"{column} {end}": found[i] for column, found in pairs.items() for end, i in (("f", 0), ("s", -1))}
        rows += [{"name": name} | ends] if ends else []
    return rows


def phases() -> list[Row]:
    """The largest error of an angle x w in radians (up to pi), positions x from 0 to the length, w = 100^(-i / 32).

    Positions, frequencies and their product in one dtype; "here" is what this library does: angles in float64, tables in float32.
    """
    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "here": None}
    return [{"name": name, **{f"{n}": phase_error(kind, n) for n in (16, 64, 256, 1024)}} for name, kind in kinds.items()]


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a table; a dash where there is no value."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---|" + "--:|" * (len(rows[0]) - 1)]
    for row in rows:
        lines.append("| " + " | ".join(map(number, row.values())) + " |")
    return "\n".join(lines) + "\n"


def number(value: object) -> str:
    """A cell: two digits of a number, or more before the point."""
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:.0f}" if 100 <= abs(value) < 1e4 else f"{value:.2g}"


def write(file: Path, found: Sequence[Table], made: str) -> None:
    """Put the tables between the two marks of `file`, where they replace what was; `made` says by what.

    A new file is a title and the tables. A file without marks is refused, or what somebody wrote would be lost.
    """
    old = file.read_text() if file.exists() else f"# What every encoding is, measured\n\n{START}\n{END}\n"
    before, start, rest = old.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{file} has no marks to write between: put the lines {START} and {END} where the tables should be")
    body = "\n".join([made, *(table.section(file.with_suffix("")) for table in found)])
    file.write_text(f"{before}{START}\n\n{body}\n{END}{after}")


def commit() -> str:
    """Short hash of the checkout that this file is in, marked when files differ from it; unknown where there is none."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return "unknown"
    told = ["git", "describe", "--always", "--dirty=+dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(told, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
