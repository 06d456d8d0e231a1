"""The page: one file, with the data, the style sheet and the scripts in it, that asks for nothing over the network."""

import base64
import html
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from train import costs, plots
from train.figures import looks
from train.plots import Curve
from train.report.tables import encodings, note, title
from train.rows import COLUMNS, TESTS, Row, Run

SCRIPTS = ("marks.js", "state.js", "charts.js", "tables.js", "page.js")


def part(name: str) -> str:
    """A file that the page is made of."""
    return Path(__file__).with_name(name).read_text("utf-8")


def page_test(test: str, rows: Sequence[Row], chance: float | None) -> dict[str, Any]:
    """One test for the page. `best` of a curve: temperature or "any" -> the ratio at which it is its encoding's best scaling."""
    every = plots.curves(rows)
    columns, drawn, bound = plots.sizes(every), plots.drawn_sizes(every), plots.upper_bound(rows)
    best: dict[int, dict[str, float]] = {}
    for temperature in ["any", *dict.fromkeys(curve.temperature for curve in every)]:
        within = [curve for curve in every if temperature in ("any", curve.temperature)]
        for encoding in dict.fromkeys(curve.encoding for curve in within):
            if found := plots.best_scaling(within, encoding):
                best.setdefault(id(found[0]), {})[temperature] = found[1].ratio

    def describe(curve: Curve) -> dict[str, Any]:
        points = [asdict(curve.points[size]) if size in curve.points else None for size in columns]
        names = {"encoding": curve.encoding, "scaling": curve.rule, "temperature": curve.temperature, "how": curve.how}
        return {**names, "plain": curve.plain, "best": best.get(id(curve), {}), "points": points}

    shown = [
        {"label": size.label(test), "tick": size.tick(test), "unit": size.shape(test)[1], "drawn": size in drawn}
        for size in columns
    ]
    sizes = [{**size._asdict(), **told} for size, told in zip(columns, shown)]
    what = plots.words(test, columns)[0] if test in plots.WORDS else ""
    upper = [bound.get(size) for size in columns] if bound else None
    return {"test": test, "what": what, "columns": sizes, "curves": [describe(c) for c in every], "upper": upper, "chance": chance}


def packed(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Columns as lists; of text, or where all is the same, the different `values`, and which of them is `at` each row."""
    columns = [list(column) for column in zip(*rows)]
    found = []
    for column in columns:
        values = list(dict.fromkeys(column))
        few = len(values) == 1 or any(isinstance(value, str) for value in values)
        place = {value: i for i, value in enumerate(values)}
        found.append({"values": values, "at": [place[value] for value in column]} if few else {"values": column, "at": None})
    return {"count": len(rows), "columns": found}


def data(runs: Sequence[Run], rows: Sequence[Row], chance: float | None) -> dict[str, Any]:
    """All that the page shows."""
    pictures = [path.read_bytes() for path in (run.folder / "samples.png" for run in runs) if path.exists()]
    tests = [(test, [row for row in rows if row.test == test]) for test in TESTS]
    return {
        "note": note(rows),
        "tests": [page_test(test, own, chance if test != "sequence" else None) for test, own in tests if own],
        "costs": costs.for_page(rows),
        "looks": looks(encodings(rows)),
        "runs": [run.config for run in runs],
        "trained": [event for run in runs for event in run.trained],
        "columns": COLUMNS,
        "rows": packed([astuple(row) for row in rows]),
        "samples": ["data:image/png;base64," + base64.b64encode(picture).decode() for picture in pictures],
    }


def page(runs: Sequence[Run], rows: Sequence[Row], chance: float | None) -> str:
    """Every < of the data is escaped, so that no text can end the script element."""
    parts = {
        "title": html.escape(title(runs)),
        "style": part("page.css"),
        "data": json.dumps(data(runs, rows, chance), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "scripts": "\n".join(part(name) for name in SCRIPTS),
    }
    return re.sub(r"/\* (title|style|data|scripts) \*/", lambda place: parts[place[1]], part("page.html"))
