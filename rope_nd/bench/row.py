"""One measurement, and how many are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rich.table import Table

MB = 1e6


@dataclass(frozen=True)
class Row:
    """One thing measured. `ratio` is `ms` over that of `against`, which was measured in the same rounds.

    In a model's rows it is the median of the ratios round by round, `low` and `high` its 95 % interval. `shape`: [B, N, H, D],
    N with prefix tokens; `least_ms`: the fastest round, `least_ratio`: the ratio of the fastest; `bytes`: what must be read and
    written at the least; `peak_mb`: allocated at the highest point beyond what was there before; `tables_mb`: what the tables of a
    model take; `kernel`: which path turned; `mark`: the ratio aimed at; `slope` (ms per 1000 tokens), `intercept` (ms), `r2`: the
    line through the times of all sizes.
    """

    part: str
    name: str
    device: str
    dtype: str
    layout: str | None
    form: str
    direction: str
    shape: tuple[int, ...]
    per_head: bool
    ms: float
    ratio: float
    against: str
    threads: int
    rounds: int
    least_ms: float
    least_ratio: float
    bytes: int | None = None
    peak_mb: float | None = None
    tables_mb: float | None = None
    kernel: str | None = None
    mark: float | None = None
    low: float | None = None
    high: float | None = None
    slope: float | None = None
    intercept: float | None = None
    r2: float | None = None


def against(times: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """ms, ratio, and both of the fastest rounds, of times beside those of what they are compared with."""
    return {
        "ms": median(times),
        "ratio": median(times) / median(base),
        "least_ms": min(times),
        "least_ratio": min(times) / min(base),
    }


def named(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def cells(row: Row) -> dict[str, str]:
    """A row's cells by column, empty where there is nothing."""
    moved = None if row.bytes is None else row.bytes / MB
    return {
        "name": row.name if row.part != "model" or row.against == "none" else f"{row.name} / {row.against}",
        "tokens": str(row.shape[1]) if row.part == "scaling" else "",
        "per_head": "per head" if row.per_head else "",
        "ms": f"{row.ms:.3f}",
        "least ms": f"{row.least_ms:.3f}",
        "ratio": f"{row.ratio:.3f}",
        "least ratio": f"{row.least_ratio:.3f}",
        "mark": "" if row.mark is None else f"{row.mark:g}",
        "95 %": "" if row.low is None else f"{row.low:.3f} .. {row.high:.3f}",
        "MB moved": "" if moved is None else f"{moved:.1f}",
        "GB/s": "" if moved is None else f"{moved / row.ms:.1f}",
        "peak MB": "" if row.peak_mb is None else f"{row.peak_mb:.1f}",
        "tables MB": "" if row.tables_mb is None else f"{row.tables_mb:.2f}",
        "kernel": row.kernel or "",
    }


def group(row: Row) -> str:
    """What rows of one table have in common."""
    shape = None if row.part == "scaling" else "x".join(map(str, row.shape))
    common = (row.device, row.dtype, row.layout, row.form, row.direction, shape)
    return f"{row.part}: {', '.join(word for word in common if word)}"


def table(title: str, rows: Sequence[Row], missing: Sequence[str] = ()) -> Table:
    """A rich table of rows, columns that are empty left out; `missing` names have a row that says so."""
    from rich.table import Table

    shown = [cells(row) for row in rows]
    columns = [column for column in shown[0] if any(row[column] for row in shown)]
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="left" if column in ("name", "per_head", "kernel") else "right")
    for row in shown:
        made.add_row(*(row[column] for column in columns))
    for name in missing:
        made.add_row(name, *("not installed" if column == "ms" else "" for column in columns[1:]))
    return made


def lines(rows: Sequence[Row]) -> list[str]:
    """What the fitted lines say, one sentence a series."""
    found = {}
    for row in rows:
        if row.slope is not None:
            words = (row.name, row.dtype, row.layout, row.form, row.direction, "per head" if row.per_head else None)
            found[", ".join(word for word in words if word)] = row
    return [
        f"{name}: {row.slope:.4f} ms per 1000 tokens and {row.intercept:+.4f} ms, R² {row.r2:.4f}" for name, row in found.items()
    ]
