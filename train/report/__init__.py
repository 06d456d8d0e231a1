"""A report from the rows of a run: table.md, plot.png, speed.png and report.html, made again at any time.

python -m train.report runs/digits                            # the table in the terminal, the files beside the rows
python -m train.report runs/digits runs/more --out results/x  # several runs put together

A cell is the mean ± the sample standard deviation over seeds. The best scaling of an encoding is chosen on the same test
inputs that are reported, at the largest size measured under all its scalings, so it is a little optimistic.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import rich.box
import tyro
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from train import costs, plots
from train.durable import publish
from train.report.page import page
from train.report.tables import encodings, grid, markdown, tabulate_all
from train.rows import COLUMNS, Row, Run, chance_of, join, read_rows, read_run

__all__ = ["COLUMNS", "Row", "Run", "grid", "main", "print_table", "read_rows", "read_run", "report", "write"]


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


def report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the files to `out`, by default the first folder; return the page. Errors write nothing; speed.png if there is any."""
    runs = [read_run(Path(folder)) for folder in folders]
    rows, chance = join(runs), chance_of(runs)
    pictured = [row for row in rows if row.test != "sequence"]
    files: dict[str, bytes | None] = {
        "table.md": markdown(runs, rows, chance).encode(),
        "plot.png": plots.picture(pictured, encodings(rows), chance),
        "speed.png": costs.picture(rows, encodings(rows)),
        "report.html": page(runs, rows, chance).encode(),
    }
    out = Path(out or folders[0])
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if content is not None:
            publish(out / name, content)
    return out / "report.html"


def main(folders: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path | None = None) -> None:
    """Make table.md, plot.png, speed.png and report.html from the rows of one or several runs, and print the short table.

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
