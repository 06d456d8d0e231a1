"""What an input costs at each of its sizes: how many a second, memory at the peak. From the rows without scaling or temperature.

A cell is the mean ± the sample standard deviation over its measurements (seeds, and tests with inputs of that size), each once;
bands reach from the lowest to the highest. Columns of rows.csv that are missing or empty have no table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from train import figures
from train.rows import Row, Size


@dataclass(frozen=True)
class Cost:
    """`column` of rows.csv; `about`: what is to be known of it."""

    column: str
    name: str
    unit: str
    about: str


COSTS = (
    Cost(
        "images_per_s",
        "speed",
        "inputs a second",
        "Inputs a second in evaluation, on the machine as it was loaded then: a study runs several models at a time.",
    ),
    Cost(
        "ms_per_input",
        "time",
        "ms an input",
        "Milliseconds for each input of batches of at most 8,192 tokens, the median over batches without the first.",
    ),
    Cost(
        "memory_mb",
        "memory",
        "MiB",
        "The most memory in use up to then: on a CPU of the whole process since it began, data included, so that a small input "
        "measured after a large one shows the memory of the large one; on a GPU of tensors, in one measurement.",
    ),
    Cost(
        "peak_mb",
        "peak",
        "MiB",
        "The most that the model allocates at once, above what was there, for one batch of at most 8,192 tokens.",
    ),
)


class Shape(NamedTuple):
    """The extent of one input; sorted by its number of pixels or voxels. `clip`: the depth counts frames."""

    pixels: int
    depth: int | None
    height: int
    width: int
    clip: bool

    @property
    def ticks(self) -> tuple[str, ...]:
        """One or two short lines for an axis."""
        name, unit = Size(1, self.height, self.width, None if self.clip else self.depth).shape("zoom")
        line = name if unit == "voxels" else f"{name} {unit}"
        return (line, f"{self.depth} frames") if self.clip else (line,)

    @property
    def label(self) -> str:
        return " of ".join(reversed(self.ticks))


@dataclass(frozen=True)
class Amount:
    """`low`, `high`: the lowest and highest of `count` measurements."""

    mean: float
    std: float | None
    low: float
    high: float
    count: int

    @property
    def text(self) -> str:
        """Three digits of the mean, or all before the point; the deviation to the same place."""
        digits = max(0, 2 - math.floor(math.log10(self.mean))) if self.mean > 0 else 0
        return f"{self.mean:,.{digits}f}" + ("" if self.std is None else f" ± {self.std:,.{digits}f}")


Amounts = dict[str, dict[Shape, Amount]]  # of each encoding


def shape(row: Row) -> Shape:
    return Shape((row.depth or 1) * row.height * row.width, row.depth, row.height, row.width, row.fps is not None)


def amount(values: Sequence[float]) -> Amount:
    return Amount(mean(values), stdev(values) if len(values) > 1 else None, min(values), max(values), len(values))


def amounts(rows: Iterable[Row], column: str) -> Amounts:
    """Encodings as first seen, shapes from small to large. A number copied from one test to another is one measurement."""
    found: dict[str, dict[Shape, dict[tuple[int, float], None]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        value = getattr(row, column, None)
        if value is not None and row.scaling == row.temperature == "none":
            found[row.encoding][shape(row)][row.seed, value] = None
    return {encoding: {at: amount([value for _, value in cells[at]]) for at in sorted(cells)} for encoding, cells in found.items()}


def measured(rows: Sequence[Row]) -> list[tuple[Cost, Amounts]]:
    """The costs that the rows hold."""
    return [(cost, found) for cost in COSTS if (found := amounts(rows, cost.column))]


def shapes(found: Amounts) -> list[Shape]:
    return sorted({at for cells in found.values() for at in cells})


def cells(found: Amounts) -> list[list[str]]:
    """Header and lines of a table."""
    columns = shapes(found)
    lines = [[encoding, *(own[at].text if at in own else "" for at in columns)] for encoding, own in found.items()]
    return [["encoding", *(at.label for at in columns)], *lines]


def for_page(rows: Sequence[Row]) -> list[dict[str, Any]]:
    def point(found: Amount | None) -> dict[str, Any] | None:
        return None if found is None else {**vars(found), "text": found.text}

    return [
        {
            **vars(cost),
            "columns": [{"label": at.label, "ticks": at.ticks} for at in shapes(found)],
            "curves": [{"encoding": name, "points": [point(own.get(at)) for at in shapes(found)]} for name, own in found.items()],
        }
        for cost, found in measured(rows)
    ]


def draw_panel(axes: Axes, cost: Cost, found: Amounts, encodings: Sequence[str]) -> None:
    """Every size a step along the axis, from small to large; amounts on a logarithmic scale, from zero if they are alike."""
    at, entries = shapes(found), []
    for encoding, (colours, marker) in figures.looks(encodings).items():
        if own := found.get(encoding):
            look: dict[str, Any] = {"color": colours[0], "marker": marker, "markersize": 4.5, "linewidth": 1.7}
            x, points = [at.index(size) for size in own], list(own.values())
            (line,) = axes.plot(x, [p.mean for p in points], **look)
            axes.fill_between(x, [p.low for p in points], [p.high for p in points], color=colours[0], alpha=0.13, linewidth=0)
            entries.append(((line,), encoding))
    every = [p for own in found.values() for p in own.values()]
    if min(p.low for p in every) * 4 < max(p.high for p in every) and min(p.low for p in every) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{cost.name}: {cost.unit}")
    axes.set_xticks(range(len(at)), ["\n".join(size.ticks) for size in at])
    axes.set_xlabel("size of an input, from small to large; not to scale")
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    figures.legend_under(axes, entries)


def picture(rows: Sequence[Row], encodings: Sequence[str]) -> bytes | None:
    """A PNG of a panel a cost, or None if the rows hold none."""
    held = measured(rows)

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (cost, found) in zip(panels, held):
            draw_panel(axes, cost, found, encodings)

    return figures.png(figures.figure(len(held), len(encodings), draw)) if held else None
