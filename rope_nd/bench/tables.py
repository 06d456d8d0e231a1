"""Making tables, beside copying them; and how the time of tables and of turning grows with the number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..rope import RoPE
from . import memory, rotation
from .row import MB, Row, against
from .timing import Subject, fit, interleaved

EXTENT = (64, 64)
LENGTHS = (14, 28, 56, 84, 112, 128)  # tokens an axis: 196 to 16,384 in all


def builders(heads: int, width: int, device: torch.device) -> dict[str, Callable[[], RoPE]]:
    """New modules by name: fixed along the axes, and learned in directions of each head's own."""
    return {
        "axial": lambda: RoPE(width, 2, "axial").to(device),
        "mixed": lambda: RoPE(width, 2, "mixed", heads=heads).to(device),
    }


def subjects(extent: tuple[int, int], heads: int, width: int, device: torch.device) -> list[tuple[Subject, bool, int]]:
    """What is timed, whether it differs by head, and the bytes it writes; first a copy into tables that are there."""
    made = builders(heads, width, device)
    source = made["axial"]().at(*extent)
    there = torch.zeros_like(source.cos), torch.zeros_like(source.sin)
    found = [
        (Subject("copy_", lambda given: (there[0].copy_(source.cos), there[1].copy_(source.sin))), False, rotation.size(source))
    ]
    for name, build in made.items():
        kept, per_head = build(), name == "mixed"
        written = rotation.size(kept.at(*extent))
        found.append((Subject(f"rope_nd {name}", lambda rope: rope.at(*extent), build), per_head, written))
        found.append((Subject(f"rope_nd {name}, again", lambda given, rope=kept: rope.at(*extent)), per_head, written))  # type: ignore[misc]
    return found


def measure(extent: tuple[int, int], shape: rotation.Shape, device: torch.device, rounds: int, part: str = "tables") -> list[Row]:
    """The rows of one grid, prefix tokens left out: they have no tables."""
    entries = subjects(extent, *shape[2:], device)
    times = interleaved([subject for subject, *_ in entries], rounds=rounds, device=device)
    peaks = [memory.peak(partial(subject.run, subject.prepare()), device) for subject, *_ in entries]
    full = (1, extent[0] * extent[1], *shape[2:])
    return [
        Row(
            part, subject.name, device.type, "float32", None, "tables", "forward", full, per_head,
            **against(took, times[0]), against="copy_", threads=torch.get_num_threads(), rounds=rounds, bytes=written,  # type: ignore[arg-type]
            peak_mb=peak / MB,
        )
        for (subject, per_head, written), took, peak in zip(entries, times, peaks)
    ]  # fmt: skip


def run(shape: rotation.Shape, device: torch.device, *, rounds: int, extent: tuple[int, int] = EXTENT) -> Iterator[list[Row]]:
    """Tables of one grid: made by a new module (`rope_nd axial`), and asked for again (`again`)."""
    yield measure(extent, shape, device, rounds)


def scaling(
    shape: rotation.Shape, device: torch.device, *, rounds: int, lengths: Sequence[int] = LENGTHS, **cases: Any
) -> Iterator[list[Row]]:
    """Turning and tables on square grids of each length, with the line of least squares through each one's medians."""
    found: list[Row] = []
    for length in lengths:
        extent = length, length
        tokens = extent[0] * extent[1] + cases.get("prefix", 1)
        case = (shape[0], tokens, *shape[2:])
        for turned in rotation.run(case, device, rounds=rounds, alone=True, **cases):
            found += [replace(row, part="scaling") for row in turned]
        found += measure(extent, shape, device, rounds, "scaling")
    yield lined(found)


def lined(rows: Sequence[Row]) -> list[Row]:
    """The same rows, each with the line of its series (what differs in size alone), series by series."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        series.setdefault((row.name, row.dtype, row.layout, row.form, row.direction, row.per_head), []).append(row)
    found = []
    for members in series.values():
        slope, intercept, r2 = fit([row.shape[1] / 1000 for row in members], [row.ms for row in members])
        found += [replace(row, slope=slope, intercept=intercept, r2=r2) for row in members]
    return found
