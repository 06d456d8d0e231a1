"""Pictures of what encodings are: kernels, codes, and what rounding does. The same numbers give the same bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from .positions import grid
from .properties import build, code, kernel, kind_of
from .tables import Row, Table, number

SIGNED, PLAIN = "RdBu_r", "viridis"  # both keep their order for colour-blind eyes
HIDDEN = -1e4  # kernels at or below are minus infinity
COLUMNS = 7
KINDS = {
    "absolute": "Absolute: cosine of two codes",
    "bias": "Bias: each over its own range, grey where hidden",
    "rotary": "Rotary: score of fixed keys, over that at distance zero",
}


@dataclass(frozen=True)
class Panel:
    """What one encoding shows in a picture, `[rows, columns]`."""

    name: str
    kind: str
    values: Tensor


def panels(names: Sequence[str], trained: int) -> tuple[list[Panel], list[Panel]]:
    """Kernels of a query in the middle of a grid of twice the trained length (absolute) or four times it; codes along axis 0."""
    kernels: list[Panel] = []
    codes: list[Panel] = []
    for name in names:
        enc = build(name, 2, (trained, trained))
        kind, length = kind_of(enc), 4 * trained
        side = 2 * trained + 1 if kind == "absolute" else length + 1
        middle = torch.full((1, 2), side // 2, dtype=torch.float64)
        values = kernel(enc, middle, grid(side, side, dtype=torch.float64), (side, side)).view(side, side)
        kernels.append(Panel(name, kind, values))
        line = torch.zeros(length, 2, dtype=torch.float64)
        line[:, 0] = torch.arange(length)
        found = code(enc, line, (length, length))
        if found is not None:
            codes.append(Panel(name, kind, found.T if kind == "absolute" else found.T[: found.shape[1] // 2]))  # that of v
    return kernels, codes


def save(figure: Figure) -> bytes:
    """The figure as a PNG that does not say when and by what it was made."""
    buffer = io.BytesIO()
    options: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.1, "metadata": {"Software": None}}
    figure.savefig(buffer, format="png", dpi=130, facecolor="white", **options)
    return buffer.getvalue()


def grouped(panels: Sequence[Panel], height: float) -> tuple[Figure, list[tuple[str, Any, list[tuple[Axes, Panel]]]]]:
    """A figure with a part for each kind of encoding, and in it a small plot for each of them, `height` inches high."""
    kinds = [kind for kind in KINDS if any(panel.kind == kind for panel in panels)]
    members = [[panel for panel in panels if panel.kind == kind] for kind in kinds]
    rows = [math.ceil(len(each) / COLUMNS) for each in members]
    figure = Figure(figsize=(1.75 * COLUMNS + 1, height * sum(rows) + 0.35 * len(rows)), layout="constrained")
    parts = figure.subfigures(len(kinds), 1, height_ratios=[n + 0.3 for n in rows], squeeze=False)[:, 0]
    found = []
    for kind, part, each, n in zip(kinds, parts, members, rows):
        plots = part.subplots(n, COLUMNS, squeeze=False).flatten()
        for spare in plots[len(each) :]:
            spare.set_axis_off()
        found.append((kind, part, list(zip(plots, each))))
    return figure, found


def kernels(panels: Sequence[Panel], trained: int) -> bytes:
    """The kernel of a query in the middle of a grid against all keys, what was trained in a dashed frame.

    Absolute codes know positions: the frame is the trained grid. Biases and rotary kernels know offsets: it is those of that grid.
    """
    with style.context(["default", {"font.size": 9}]):
        figure, parts = grouped(panels, 1.95)
        for kind, part, plots in parts:
            part.suptitle(KINDS[kind], x=0.01, ha="left", weight="bold", size=10)
            norm = Normalize(0, 1) if kind == "bias" else Normalize(-1, 1)
            colours = colormaps[PLAIN if kind == "bias" else SIGNED].with_extremes(bad="#bbbbbb")
            for axes, panel in plots:
                shown, text = _kernel(panel)
                axes.imshow(shown, cmap=colours, norm=norm, interpolation="nearest")
                axes.set_title(text, size=8.5, linespacing=0.95)
                axes.set_xticks([]), axes.set_yticks([])
                corner = -0.5 if kind == "absolute" else len(shown) // 2 - trained + 0.5
                side = trained if kind == "absolute" else 2 * trained - 1
                for line, colour in (("-", "white"), ((0, (3, 2)), "black")):
                    axes.add_patch(Rectangle((corner, corner), side, side, fill=False, ls=line, ec=colour, lw=1.1))
            bar = part.colorbar(ScalarMappable(norm, colours), ax=part.axes, shrink=0.85, pad=0.01, aspect=25)
            bar.set_ticks([0, 1], labels=["lowest", "highest"]) if kind == "bias" else bar.set_ticks([-1, 0, 1])
        return save(figure)


def _kernel(panel: Panel) -> tuple[Any, str]:
    """What to draw of a kernel, and its title."""
    values = panel.values.numpy()
    if panel.kind != "bias":
        middle = values[len(values) // 2, len(values) // 2] if panel.kind == "rotary" else 1
        return values / middle, panel.name
    seen = np.ma.masked_less_equal(values, HIDDEN)
    low, high = seen.min(), seen.max()
    return (seen - low) / max(high - low, 1e-12), f"{panel.name}\n{low + 0.0:.2g} to {high + 0.0:.2g}"


def codes(panels: Sequence[Panel], trained: int) -> bytes:
    """Codes, position to the right and channel down, each over its largest value; trained positions are left of the line.

    A channel that begins negative, by the sign of the fixed key, is drawn with the other sign if it is of a rotary encoding.
    """
    with style.context(["default", {"font.size": 9}]):
        figure, parts = grouped(panels, 1.95)
        norm = Normalize(-1, 1)
        for kind, part, plots in parts:
            part.suptitle(KINDS[kind].partition(":")[0], x=0.01, ha="left", weight="bold", size=10)
            for axes, panel in plots:
                values = panel.values.numpy()
                values = np.where(values[:, :1] < 0, -values, values) if kind == "rotary" else values
                largest = abs(values).max()
                axes.imshow(values / largest, cmap=SIGNED, norm=norm, interpolation="nearest", aspect="auto")
                axes.axvline(trained - 0.5, color="white", lw=1.6)
                axes.axvline(trained - 0.5, color="black", lw=1.1, ls=(0, (3, 2)))
                axes.set_title(f"{panel.name}\nlargest {largest:.2g}", size=8.5, linespacing=0.95)
                axes.set_xticks([0, trained, values.shape[1] - 1]), axes.set_yticks([0, values.shape[0] - 1])
                axes.tick_params(labelsize=7, length=2, pad=1)
            part.colorbar(ScalarMappable(norm, SIGNED), ax=part.axes, shrink=0.85, pad=0.01, ticks=[-1, 0, 1])
            part.supxlabel("position", size=8), part.supylabel("channel", size=8)
        return save(figure)


def precision(rounding: Sequence[Row], outliers: Sequence[Row]) -> bytes:
    """Errors of the scores in per cent, encodings down and formats across; and the ratios of after over before."""
    with style.context(["default", {"font.size": 9}]):
        figure = Figure(figsize=(15, 0.27 * len(rounding) + 1.7), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[12, 9])
        _cells(left, rounding, LogNorm(0.02, 100), PLAIN)
        left.set_title("Error of the scores over the scores, %, a scale a token\n", loc="left", weight="bold")
        if outliers:
            _cells(right, outliers, Normalize(-30, 30, clip=True), SIGNED)
            right.set_title("Larger by so many % after the turning than before, large key channels\n", loc="left", weight="bold")
        else:
            right.set_axis_off()
        return save(figure)


def _cells(axes: Axes, rows: Sequence[Row], norm: Normalize, colours: str) -> None:
    """A cell for each number, the columns named above, encodings to the left."""
    columns = [name for name in rows[0] if name != "name"]
    values = np.array([[math.nan if row[name] is None else row[name] for name in columns] for row in rows])
    axes.imshow(values, cmap=colours, norm=norm, aspect=0.42, interpolation="nearest")
    axes.set_anchor("N")
    axes.set_xticks(range(len(columns)), [name.replace(" ", "\n", 1) for name in columns], size=8)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], size=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    shades = colormaps[colours](norm(values))  # [rows, columns, 4]
    for (i, j), value in np.ndenumerate(values):
        dark = shades[i, j, :3] @ (0.299, 0.587, 0.114) < 0.5
        if not math.isnan(value):
            axes.text(j, i, number(float(value)), ha="center", va="center", size=7.5, color="white" if dark else "black")


def write(folder: Path, names: Sequence[str], found: Sequence[Table], trained: int) -> None:
    """All pictures of the encodings of these names, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {table.title: table.rows for table in found}
    shown, coded = panels(names, trained)
    (folder / "kernels.png").write_bytes(kernels(shown, trained))
    if coded:
        (folder / "codes.png").write_bytes(codes(coded, trained))
    (folder / "precision.png").write_bytes(precision(rows["Rounding"], rows.get("Outliers", [])))
