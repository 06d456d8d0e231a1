"""A report from the rows of a run: table.md, plot.png and report.html, made again at any time.

python -m train.report runs/digits                            # the table in the terminal, the files beside the rows
python -m train.report runs/digits runs/more --out results/x  # several runs put together

A cell is the mean ± the sample standard deviation over seeds. The best scaling of an encoding is chosen on the same test
inputs that are reported, at the largest size measured under all its scalings, so it is a little optimistic.
"""

import base64
import html
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import rich.box
import tyro
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from train import plots
from train.plots import Curve, Point
from train.rows import COLUMNS, TESTS, Row, Run, chance_of, join, read_rows, read_run

__all__ = ["Row", "Run", "print_table", "read_rows", "read_run", "report"]
NOTE = (
    "Accuracy in %: mean ± sample standard deviation over seeds. Bold: the highest mean of its column among the rows shown, which "
    "is not a test of significance. The best scaling of an encoding is chosen on these same test inputs, at the largest size "
    "that all its scalings have, so it is a little optimistic."
)
BOUND = " Upper bound: the same models on the true crop of the canvas."


@dataclass(frozen=True)
class Table:
    """Text cells; `best` holds the (row, column) of the highest mean of each column, ties at the printed digit included."""

    test: str
    header: list[str]
    cells: list[list[str]]
    best: set[tuple[int, int]]


def title(runs: Sequence[Run]) -> str:
    return " + ".join(str(run.config["name"]) for run in runs)


def note(rows: Sequence[Row]) -> str:
    """What is to be known of the tables."""
    return NOTE + BOUND * any(row.upper is not None for row in rows)


def encodings(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.encoding for row in rows))


def cell(point: Point | None, seeds: int) -> str:
    """Percent. The number of seeds is given where it is not that of the table."""
    if point is None:
        return ""
    spread = "" if point.std is None else f" ± {100 * point.std:.1f}"
    return f"{100 * point.mean:.1f}{spread}" + (f" (n={point.seeds})" if point.seeds < seeds else "")


def tabulate(test: str, rows: Sequence[Row], chance: float | None, only_best: bool) -> Table:
    """All curves of a test, or per encoding the plain one and the best scaling; then the upper bound and chance."""
    every = plots.curves(rows)
    best = {encoding: plots.best_scaling(every, encoding) for encoding in dict.fromkeys(curve.encoding for curve in every)}
    chosen = {id(found[0]): f"{found[0].rule} (best at ×{found[1].ratio:.3g})" for found in best.values() if found}
    shown = [curve for curve in every if not only_best or curve.plain or id(curve) in chosen]
    columns, seeds = plots.sizes(shown), max(point.seeds for curve in shown for point in curve.points.values())
    names = [[curve.encoding, chosen.get(id(curve), curve.rule), curve.temperature] for curve in shown]
    marked = set()
    for j, size in enumerate(columns, 3):
        values = {i: float(f"{100 * curve.points[size].mean:.1f}") for i, curve in enumerate(shown) if size in curve.points}
        marked |= {(i, j) for i, value in values.items() if value == max(values.values())}
    body = [[*name, *(cell(curve.points.get(size), seeds) for size in columns)] for name, curve in zip(names, shown)]
    if bound := plots.upper_bound(rows):
        body.append(["upper bound", "", "", *(f"{100 * bound[size]:.1f}" if size in bound else "" for size in columns)])
    if chance is not None:
        body.append(["chance", "", "", *(f"{100 * chance:.1f}" for _ in columns)])
    return Table(test, ["encoding", "scaling", "temperature", *(size.label(test) for size in columns)], body, marked)


def tabulate_all(rows: Sequence[Row], chance: float | None, only_best: bool = False) -> list[Table]:
    """The sequence task has classes of its own, so the chance of the pictures is not a line of its table."""
    split = {test: [row for row in rows if row.test == test] for test in TESTS}
    return [tabulate(test, part, chance if test != "sequence" else None, only_best) for test, part in split.items() if part]


def training(runs: Sequence[Run]) -> list[list[str]]:
    """Per encoding, means over the trained models: models, parameters, steps, seconds, share of the time spent waiting for data."""
    events = [event for run in runs for event in run.trained]
    lines = []
    for encoding in dict.fromkeys(str(event.get("encoding")) for event in events):
        own = [event for event in events if str(event.get("encoding")) == encoding]
        line = [encoding, str(len(own))]
        for name, scale, form in (
            ("parameters", 1, ",.0f"),
            ("steps", 1, ",.0f"),
            ("seconds", 1, ",.1f"),
            ("wait_share", 100, ".1f"),
        ):
            values = [event[name] for event in own if isinstance(event.get(name), int | float)]
            line.append(format(scale * mean(values), form) if values else "")
        lines.append(line)
    return lines


def provenance(run: Run) -> list[str]:
    """Command, commit, seeds, machine and time of a run, as Markdown lines."""
    config, machine = run.config, run.config.get("machine") or {}
    commits = sorted({row.commit for row in run.rows if row.commit}) or [str(config.get("commit", ""))]
    facts = {
        "commit": ", ".join(commits) + (" with uncommitted changes" if config.get("dirty") else ""),
        "seeds": ", ".join(str(seed) for seed in sorted({row.seed for row in run.rows})),
        "machine": ", ".join(f"{name} {value}" for name, value in machine.items()),
        "time": f"{config['seconds']:,.0f} s" if isinstance(config.get("seconds"), int | float) else "",
    }
    return [f"### {config['name']}", "", f"    {config.get('command', run.rows[0].command)}", ""] + [
        f"- {k}: {v}" for k, v in facts.items() if v
    ]


def grid(header: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *cells]
    return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]


def markdown(runs: Sequence[Run], rows: Sequence[Row], chance: float | None) -> str:
    lines = [f"# {title(runs)}", "", note(rows), ""]
    for table in tabulate_all(rows, chance):
        bold = [
            [f"**{text}**" if (i, j) in table.best else text for j, text in enumerate(line)] for i, line in enumerate(table.cells)
        ]
        lines += [f"## {table.test}", "", *grid(table.header, bold), ""]
    if facts := training(runs):
        header = ["encoding", "models", "parameters", "steps", "seconds", "waiting for data (%)"]
        lines += ["## training", "", *grid(header, facts), ""]
    lines += ["## runs", ""]
    for run in runs:
        lines += [*provenance(run), ""]
    return "\n".join(lines)


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


def page(runs: Sequence[Run], rows: Sequence[Row], chance: float | None) -> str:
    """The template with the data in it; every < is escaped, so no text can end the script element."""
    pictures = [path.read_bytes() for path in (run.folder / "samples.png" for run in runs) if path.exists()]
    tests = [(test, [row for row in rows if row.test == test]) for test in TESTS]
    data = {
        "note": note(rows),
        "tests": [page_test(test, part, chance if test != "sequence" else None) for test, part in tests if part],
        "looks": plots.looks(encodings(rows)),
        "runs": [run.config for run in runs],
        "trained": [event for run in runs for event in run.trained],
        "columns": COLUMNS,
        "rows": [astuple(row) for row in rows],
        "samples": ["data:image/png;base64," + base64.b64encode(picture).decode() for picture in pictures],
    }
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    template = Path(__file__).with_name("page.html").read_text("utf-8")
    return template.replace("__TITLE__", html.escape(title(runs))).replace("__DATA__", text)


def print_table(*folders: Path) -> None:
    """The short table of one run, or of several put together, in the terminal."""
    runs = [read_run(Path(folder)) for folder in folders]
    console = Console() if sys.stdout.isatty() else Console(width=160)
    for table in tabulate_all(join(runs), chance_of(runs), only_best=True):
        heading = f"{table.test}: no scaling, and each encoding's best scaling"
        view = RichTable(title=heading, box=rich.box.SIMPLE, title_justify="left", title_style="bold")
        for j, name in enumerate(table.header):
            view.add_column(name, justify="left" if j < 3 else "right")
        for i, line in enumerate(table.cells):
            view.add_row(*(Text(text, style="bold green" if (i, j) in table.best else "") for j, text in enumerate(line)))
        console.print(view)
    console.print("Accuracy in %, mean ± std over seeds. Bold: the best of those shown. Every scaling: table.md and report.html.")


def write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write table.md, plot.png and report.html to `out`, by default the first folder; return the page. Errors write nothing."""
    runs = [read_run(Path(folder)) for folder in folders]
    rows, chance = join(runs), chance_of(runs)
    pictured = [row for row in rows if row.test != "sequence"]
    files = {
        "table.md": markdown(runs, rows, chance).encode(),
        "plot.png": plots.picture(pictured, encodings(rows), chance),
        "report.html": page(runs, rows, chance).encode(),
    }
    out = Path(out or folders[0])
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(out / name, content)
    return out / "report.html"


def main(folders: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path | None = None) -> None:
    """Make table.md, plot.png and report.html from the rows of one or several runs, and print the short table.

    Args:
        folders: runs/NAME ...: folders with rows.csv; their rows are put together.
        out: Where to write; by default the first folder.
    """
    try:
        written = report(folders, out)
        print_table(*folders)
        print(written)
    except (ValueError, OSError) as error:
        print(f"train.report: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    tyro.cli(main)
