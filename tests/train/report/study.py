"""A small study with a page, and what is read from a page."""

import json

from PIL import Image

from train.report.page import page as written
from train.rows import Row, read_rows, read_run, write_rows

CHANCE = 0.1
ENCODINGS = {"none": 0.5, "axial": 0.8, "mixed <b>": 0.7}
RULES = {"none": 0.0, "pi": 0.113, "yarn": 0.207}


def row(encoding, seed, test, ratio, rule, accuracy, cost):
    upper = 0.85 if test == "canvas" else None
    size = (32 * ratio, 32 * ratio, rule, "none", accuracy, None, None, upper, 500, ratio)
    return Row(encoding, seed, test, *size, *cost, "python -m train.extrapolate --recipe x", f"abc{seed}")


def measured(encodings, seeds=(0, 1, 2)):
    for encoding, plain in encodings.items():
        for seed, test, (k, ratio) in ((s, t, p) for s in seeds for t in ("zoom", "canvas") for p in enumerate((1, 2, 4))):
            for rule, gain in RULES.items():
                accuracy = plain - 0.1 * k * (1 if test == "zoom" else 1.3) + gain * (k > 0) + 0.0123 * seed
                yield row(encoding, seed, test, ratio, rule, accuracy, (1000.0 / ratio**2 + seed, 100.0 + ratio))


def make(folder, encodings=ENCODINGS, seeds=(0, 1, 2)):
    folder.mkdir()
    write_rows(folder / "rows.csv", list(measured(encodings, seeds)))
    claim = "A claim.\n\n    python -m train.extrapolate --recipe x"
    settings = {"name": folder.name, "claim": claim, "chance": CHANCE, "train_size": [32, 32], "seeds": [0, 1, 2]}
    (folder / "config.json").write_text(json.dumps({**settings, "command": "python -m train.extrapolate --recipe x"}))
    event = {"event": "trained", "encoding": "axial", "seed": 0, "parameters": 1000, "seconds": 1.5}
    (folder / "log.jsonl").write_text(json.dumps(event))
    Image.new("RGB", (640, 64), "teal").save(folder / "samples.png")
    return folder


def publish(folder, file="report.html", rows=None, runs=1):
    """Writes the page of a study beside it; its address."""
    file = folder / file
    file.write_text(written([read_run(folder)] * runs, rows or read_rows(folder / "rows.csv"), CHANCE))
    return file.as_uri()


def cells(page, where):
    """The text of each cell of the rows of `where`, a selector."""
    return page.locator(f"{where} tr").evaluate_all("rows => rows.map(row => [...row.children].map(cell => cell.textContent))")


def lines(page, where="#charts"):
    """Whose curves are drawn."""
    return page.locator(f"{where} .line").evaluate_all("lines => lines.map(line => line.dataset.of)")


def key(page):
    """What the key of the first chart says: caption, and name and value of each line."""
    return page.locator("#charts caption").first.inner_text(), [
        line[1:] for line in cells(page, "#charts section:first-child .key")
    ]
