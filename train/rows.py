"""The rows of runs, read and written: rows.csv and sequence.csv, one measurement a line; a ValueError names what to mend."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

TESTS = "zoom", "canvas", "longer", "rate", "slices", "sequence"


class Size(NamedTuple):
    """One column of a table: sorted by ratio, the size over the training size. `depth`: frames or slices; `fps`: of clips."""

    ratio: float
    height: int
    width: int
    depth: int | None = None
    fps: float | None = None

    def shape(self, test: str) -> tuple[str, str]:
        """What this size is called, and in what unit."""
        if test == "sequence":
            return f"{self.width}", "tokens"
        if test == "longer":
            return f"{self.depth}", "frames"
        if test == "rate":
            return f"{self.fps:g}", "fps"
        sides = (self.height, self.width) if self.depth is None or self.fps is not None else (self.depth, self.height, self.width)
        alike = len(set(sides)) == 1
        name = "×".join(map(str, sides[:1] if alike else sides))
        return (name, "px") if len(sides) == 2 else (name + ("³" if alike else ""), "voxels")

    def tick(self, test: str) -> str:
        """The same on an axis; of pixels the height."""
        name, unit = self.shape(test)
        return f"{self.height}" if unit == "px" else name

    def label(self, test: str) -> str:
        name, unit = self.shape(test)
        times = "" if test == "sequence" else f" ×{self.ratio:.3g}"
        return (name if unit == "voxels" else f"{name} {unit}") + times


@dataclass(frozen=True)
class Row:
    """One measurement; the fields are the columns of rows.csv. Shares are in [0, 1]; None where the file has an empty field.

    `depth`: frames or slices, `fps`: of clips; `positions`: "index" if they were counted in tokens, "units" if the model was told
    the true spacing. Files from before these columns are of images. `COSTS`: see `train.costs`.
    """

    encoding: str
    seed: int
    test: str
    height: int
    width: int
    scaling: str
    temperature: str
    accuracy: float
    low: float | None
    high: float | None
    upper: float | None
    images: int
    ratio: float
    images_per_s: float | None
    memory_mb: float | None
    command: str
    commit: str
    depth: int | None = None
    fps: float | None = None
    positions: str = "index"
    ms_per_input: float | None = None
    peak_mb: float | None = None

    @property
    def size(self) -> Size:
        return Size(self.ratio, self.height, self.width, self.depth, self.fps)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.encoding, self.seed, self.test, *self.size[1:], self.scaling, self.temperature, self.positions


@dataclass(frozen=True)
class Run:
    folder: Path
    rows: list[Row]
    config: dict[str, Any]
    trained: list[dict[str, Any]]


COLUMNS = [field.name for field in fields(Row)]
REQUIRED = [field.name for field in fields(Row) if field.default is MISSING]
COUNT, SHARE, AMOUNT = (int, 1, 10**15), (float, 0, 1), (float, 0, 1e15)
COSTS = "images_per_s", "memory_mb", "ms_per_input", "peak_mb"  # these differ from one measurement to the next
NUMBERS: dict[str, tuple[type[int] | type[float], float, float]] = {
    **dict.fromkeys(("height", "width", "depth", "images"), COUNT),
    **dict.fromkeys(("accuracy", "low", "high", "upper"), SHARE),
    **dict.fromkeys(COSTS, AMOUNT),
    "seed": (int, 0, 2**63),
    **dict.fromkeys(("ratio", "fps"), (float, 0.001, 1e6)),
}
NAMES = {"test": TESTS, "positions": ("index", "units")}
MAY_BE_EMPTY = "low", "high", "upper", *COSTS, "command", "commit", "depth", "fps"


def read_field(name: str, text: str) -> str | float | None:
    if not text.strip():
        if name not in MAY_BE_EMPTY:
            raise ValueError(f"{name} is empty: give a value")
        return None if name in NUMBERS else text
    if name in NAMES and text not in NAMES[name]:
        raise ValueError(f"{name} {text!r}: choose one of {', '.join(NAMES[name])}")
    if name not in NUMBERS:
        return text
    kind, least, most = NUMBERS[name]
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"{name} {text!r}: give a {'whole ' if kind is int else ''}number from {least} to {most:g}")
    return value


def read_rows(path: Path) -> list[Row]:
    """The measurements of one CSV file. ValueError names the file, the line and the mend."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: run the study first, or check the name")
    rows = []
    with io.StringIO(text_of(path), newline="") as file, _readable(path):
        lines = csv.DictReader(file, restkey="", restval=None)
        known = [name for name in COLUMNS if name in (lines.fieldnames or ())]
        if missing := [name for name in REQUIRED if name not in known]:
            raise ValueError(f"{path} lacks {', '.join(missing)}: its first line must be {','.join(COLUMNS)}")
        for line in lines:
            if None in line.values() or "" in line:
                raise ValueError(f"{path} line {lines.line_num} has not as many fields as the header: mend or remove it")
            try:
                rows.append(Row(**{name: read_field(name, line[name]) for name in known}))
            except ValueError as error:
                raise ValueError(f"{path} line {lines.line_num}: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no rows: run the study first")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Measurements as one CSV file, fields that are None empty."""
    write_csv(path, COLUMNS, ({k: "" if v is None else v for k, v in asdict(row).items()} for row in rows))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """A whole CSV file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may write the same file
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file ({error}): mend or remove it") from None


def text_of(path: Path) -> str:
    """The text of a file, in UTF-8, line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text ({error}): mend or remove it") from None


def read_json(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}): mend or remove it") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object: mend or remove it")
    return value


def read_run(folder: Path) -> Run:
    """The rows (sequence.csv after rows.csv), and the configuration and training facts where there are any."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a run, such as runs/NAME")
    config, log, sequence = folder / "config.json", folder / "log.jsonl", folder / "sequence.csv"
    rows = read_rows(folder / "rows.csv") + (read_rows(sequence) if sequence.exists() else [])
    settings = read_json(text_of(config), str(config)) if config.exists() else {}
    lines = text_of(log).splitlines() if log.exists() else []
    events = [read_json(line, f"{log} line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    return Run(folder, rows, {"name": folder.name, **settings}, [event for event in events if event.get("event") == "trained"])


def join(runs: Sequence[Run]) -> list[Row]:
    """All rows. The same measurement twice with two results, or runs of two tasks, cannot be averaged: ValueError."""
    if not runs:
        raise ValueError("no run folder given: name at least one, such as runs/NAME")
    for name in ("classes", "chance", "train_size"):
        values = {json.dumps(run.config[name]): run.folder for run in runs if name in run.config}
        if len(values) > 1:
            (one, first), (two, second) = list(values.items())[:2]
            raise ValueError(f"{name} is {one} in {first} and {two} in {second}: report on runs of different tasks one by one")
    found: dict[tuple[Any, ...], tuple[Row, Path]] = {}
    for run in runs:
        for row in run.rows:
            kept, folder = found.setdefault(row.key, (row, run.folder))
            if kept != row:
                shape = "x".join(str(n) for n in (row.depth, row.height, row.width) if n is not None)
                what = f"{row.encoding} seed {row.seed} {row.test} {shape} {row.scaling} {row.temperature} {row.positions}"
                raise ValueError(f"{what} is measured twice, in {folder} and {run.folder}: keep one of the two rows")
    rows = [row for row, _ in found.values()]
    if all(row.test == "sequence" for row in rows):
        raise ValueError(f"{runs[0].folder}/rows.csv has no rows but of the sequence: nothing to draw")
    return rows


def chance_of(runs: Sequence[Run]) -> float | None:
    chance = next((run.config["chance"] for run in runs if "chance" in run.config), None)
    if chance is not None and not (isinstance(chance, int | float) and 0 <= chance <= 1):
        raise ValueError(f"chance {chance!r} in config.json: give a number from 0 to 1")
    return chance
