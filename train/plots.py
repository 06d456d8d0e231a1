"""Curves over seeds and their picture: accuracy against size, the tests side by side.

A curve is one encoding, scaling, temperature and kind of positions in one test. Tables, picture and page all show these curves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from train.figures import figure, legend_under, looks, png
from train.rows import Row, Size

GREY = "#767676"
CROWD, THIN = 8, 0.9  # with more encodings lines are thin

WORDS = {
    "zoom": "same content, more pixels",
    "canvas": "same scale, a larger field",
    "longer": "more frames at the same rate",
    "rate": "the same seconds, more frames",
    "slices": "half the slices, more pixels in each",
}
ALONG = {  # the axis of a picture, by the unit of its sizes
    "px": "size over training size; height in pixels",
    "voxels": "size over training size; voxels",
    "frames": "frames over training frames",
    "fps": "rate over training rate; frames a second",
}


def words(test: str, sizes: Sequence[Size]) -> tuple[str, str]:
    """What a test is, and what is along its axis."""
    unit = sizes[0].shape(test)[1]
    return WORDS[test].replace("pixels", unit) if unit == "voxels" else WORDS[test], ALONG[unit]


@dataclass(frozen=True)
class Point:
    """Accuracy at one size in [0, 1]. `low`, `high`: ± std over seeds, or the bootstrap interval of the one seed there is."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Curve:
    encoding: str
    scaling: str
    temperature: str
    points: dict[Size, Point]
    positions: str = "index"

    @property
    def plain(self) -> bool:
        return self.rule == self.temperature == "none"

    @property
    def rule(self) -> str:
        """The scaling, and whether the model was told the true spacing."""
        parts = [] if self.scaling == "none" else [self.scaling]
        return " at ".join([*parts, "true spacing"] if self.positions == "units" else parts) or "none"

    @property
    def how(self) -> str:
        if self.plain:
            return "no scaling"
        parts = [] if self.rule == "none" else [self.rule]
        return " + ".join([*parts, f"{self.temperature} temperature"] if self.temperature != "none" else parts)


def point(rows: Sequence[Row]) -> Point:
    """Mean and sample standard deviation (n - 1) over the seeds of one cell."""
    values = [row.accuracy for row in rows]
    if len(values) == 1:
        return Point(values[0], None, rows[0].low, rows[0].high, 1)
    centre, spread = mean(values), stdev(values)
    return Point(centre, spread, max(0.0, centre - spread), min(1.0, centre + spread), len(values))


def curves(rows: Iterable[Row]) -> list[Curve]:
    """Curves of one test: encodings as first seen; in each the plain curve first, then scalings and temperatures as first seen."""
    cells: dict[tuple[str, ...], dict[Size, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row.encoding, row.scaling, row.temperature, row.positions][row.size].append(row)
    seen = [list(dict.fromkeys(key[i] for key in cells)) for i in range(4)]

    def order(key: tuple[str, ...]) -> tuple[int | bool, ...]:
        encoding, scaling, temperature, positions = (names.index(name) for names, name in zip(seen, key))
        return encoding, key[1] != "none", scaling, key[2] != "none", temperature, positions

    def curve(key: tuple[str, ...]) -> Curve:
        encoding, scaling, temperature, positions = key
        return Curve(encoding, scaling, temperature, {size: point(cells[key][size]) for size in sorted(cells[key])}, positions)

    return [curve(key) for key in sorted(cells, key=order)]


def sizes(of: Iterable[Curve]) -> list[Size]:
    return sorted({size for curve in of for size in curve.points})


def drawn_sizes(of: Sequence[Curve]) -> list[Size]:
    """The sizes of the commonest shape (most often squares): one a ratio, so a curve has one value at each."""
    every = sizes(of)
    shapes = Counter(size.width / size.height for size in every)
    usual = max(shapes, key=lambda shape: shapes[shape], default=1.0)
    return [size for size in every if size.width / size.height == usual]


def best_scaling(of: Sequence[Curve], encoding: str) -> tuple[Curve, Size] | None:
    """The encoding's best curve that is not plain, and the size it is chosen at: the largest that all its curves have."""
    own = [curve for curve in of if curve.encoding == encoding]
    scaled = [curve for curve in own if not curve.plain]
    common = [size for size in drawn_sizes(of) if all(size in curve.points for curve in own)]
    if not scaled or not common:
        return None
    return max(scaled, key=lambda curve: curve.points[common[-1]].mean), common[-1]


def upper_bound(rows: Iterable[Row]) -> dict[Size, float]:
    """Accuracy on the true crop at each size: the mean over models, each encoding and seed counted once."""
    found: dict[Size, dict[tuple[str, int], float]] = defaultdict(dict)
    for row in rows:
        if row.upper is not None:
            found[row.size][row.encoding, row.seed] = row.upper
    return {size: mean(found[size].values()) for size in sorted(found)}


def draw_curve(axes: Axes, curve: Curve, at: Sequence[Size], look: dict[str, Any]) -> None:
    """A line over its band; among so many that lines are thin it has none."""
    where = [size for size in at if size in curve.points]
    x = [size.ratio for size in where]
    points = [curve.points[size] for size in where]
    axes.plot(x, [100 * p.mean for p in points], **look)
    if look["linewidth"] == THIN:
        return
    banded = [(size.ratio, 100 * p.low, 100 * p.high) for size, p in zip(where, points) if p.low is not None and p.high is not None]
    ratios, lows, highs = ([entry[i] for entry in banded] for i in range(3))
    axes.fill_between(ratios, lows, highs, color=look["color"], alpha=0.13, linewidth=0)


def draw_encoding(axes: Axes, lines: Sequence[Curve], encoding: str, look: dict[str, Any]) -> tuple[tuple[Line2D, ...], str]:
    """The plain curve solid, the best scaling dashed; their handles and label for the legend."""
    at, chosen = drawn_sizes(lines), best_scaling(lines, encoding)
    dashed = {**look, "linestyle": (0, (3, 1.5)), "markerfacecolor": "white"}
    handles = []
    for curve in [curve for curve in lines if curve.encoding == encoding and curve.plain]:
        draw_curve(axes, curve, at, look)
        handles.append(Line2D([], [], **look))
    if chosen is None:
        return tuple(handles), encoding
    draw_curve(axes, chosen[0], at, dashed)
    return (*handles, Line2D([], [], **dashed)), f"{encoding}; dashed: {chosen[0].how} (best at ×{chosen[1].ratio:.3g})"


def draw_references(axes: Axes, bound: dict[Size, float], chance: float | None) -> list[tuple[tuple[Line2D, ...], str]]:
    """Thin grey lines: the upper bound solid, chance dotted."""
    look: dict[str, Any] = {"color": GREY, "linewidth": 1.1, "zorder": 1}
    entries: list[tuple[tuple[Line2D, ...], str]] = []
    if bound:
        axes.plot([size.ratio for size in bound], [100 * value for value in bound.values()], **look)
        entries.append(((Line2D([], [], **look),), "upper bound: the true crop"))
    if chance is not None:
        axes.axhline(100 * chance, linestyle=":", **look)
        entries.append(((Line2D([], [], linestyle=":", **look),), f"chance ({100 * chance:.3g} %)"))
    return entries


def draw_panel(axes: Axes, test: str, rows: Sequence[Row], encodings: Sequence[str], chance: float | None) -> None:
    lines = curves(rows)
    width = 1.7 if len({curve.encoding for curve in lines}) <= CROWD else THIN
    at, present = drawn_sizes(lines), {curve.encoding for curve in lines}
    entries = []
    for encoding, (colours, marker) in looks(encodings).items():
        if encoding in present:
            look = {"color": colours[0], "marker": marker, "markersize": 4.5, "linewidth": width}
            entries.append(draw_encoding(axes, lines, encoding, look))
    bound = {size: value for size, value in upper_bound(rows).items() if size in at}
    legend_under(axes, entries + draw_references(axes, bound, chance))
    what, along = words(test, at)
    axes.set_title(f"{test}: {what}")
    axes.set_xscale("log", base=2)
    axes.set_xticks([size.ratio for size in at], [f"×{size.ratio:.3g}\n{size.tick(test)}" for size in at])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(along)
    axes.set_ylim(0, 101)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)


def draw(rows: Sequence[Row], encodings: Sequence[str], chance: float | None) -> Figure:
    """A panel a test."""
    tests = [test for test in WORDS if any(row.test == test for row in rows)]

    def fill(panels: Sequence[Axes]) -> None:
        for axes, test in zip(panels, tests):
            draw_panel(axes, test, [row for row in rows if row.test == test], encodings, chance)
        panels[0].set_ylabel("accuracy (%)")

    return figure(len(tests), len(encodings) + 2, fill, sharey=True)


def picture(rows: Sequence[Row], encodings: Sequence[str], chance: float | None) -> bytes:
    """A PNG of a panel a test. The same rows give the same bytes."""
    return png(draw(rows, encodings, chance))
