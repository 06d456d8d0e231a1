"""How the pictures of a study look: colours, marks, panels beside one another, legends under them."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

# (on white, on black): contrast of at least 3, and far apart with full sight, protanopia, deuteranopia and tritanopia
COLOURS = (
    ("#03458E", "#A3CEFE"),
    ("#E57218", "#D37E3D"),
    ("#189C61", "#0EF99A"),
    ("#C177A9", "#F82D9D"),
    ("#5A3F01", "#F9CC2F"),
    ("#1A1A1A", "#FFFFFF"),
    ("#A575F7", "#9E6CF5"),
)
MARKERS = "o", "s", "^", "D", "v", "P", "X", "h"
STYLE: list[Any] = [
    "default",
    {"font.size": 9, "axes.titlesize": 10.5, "legend.fontsize": 8.5, "axes.titlelocation": "left", "axes.axisbelow": True}
    | {"axes.spines.top": False, "axes.spines.right": False},
]
WIDEST = 60  # characters of a line in the legend


def looks(encodings: Sequence[str]) -> dict[str, tuple[tuple[str, str], str]]:
    """Encoding -> ((colour on white, colour on black), marker). Up to 7 encodings have a colour, 56 a pair of their own."""
    return {name: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(encodings)}


def legend_under(axes: Axes, entries: Sequence[tuple[tuple[Line2D, ...], str]]) -> None:
    """One column under the panel, so that it covers nothing; a long label is folded to the panel's width."""
    labels = [textwrap.fill(label, WIDEST) for _, label in entries]
    options: dict[str, Any] = {"handler_map": {tuple: HandlerTuple(ndivide=None, pad=0.6)}, "handlelength": 5.6}
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.2), "borderaxespad": 0, "borderpad": 0, "frameon": False}
    axes.legend([handles for handles, _ in entries], labels, **options, **place)


def figure(panels: int, entries: int, draw: Callable[[Sequence[Axes]], None], **options: Any) -> Figure:
    """Panels side by side over legends of so many entries."""
    with style.context(STYLE):
        found = Figure(figsize=(5.6 * panels, 4.0 + 0.2 * entries), layout="constrained")
        draw(found.subplots(1, panels, squeeze=False, **options)[0])
    return found


def png(figure: Figure) -> bytes:
    """The same figure gives the same bytes."""
    buffer = io.BytesIO()
    options: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.1, "metadata": {"Software": None}}
    with style.context(STYLE):
        figure.savefig(buffer, format="png", dpi=150, facecolor="white", **options)
    return buffer.getvalue()
