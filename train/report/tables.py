"""Tables of accuracy, costs and training over seeds, and all of them as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from train import costs, plots
from train.plots import Point
from train.rows import TESTS, Row, Run

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
    for cost, found in costs.measured(rows):
        header, *body = costs.cells(found)
        lines += [f"## {cost.name}: {cost.unit}", "", cost.about, "", *grid(header, body), ""]
    if facts := training(runs):
        header = ["encoding", "models", "parameters", "steps", "seconds", "waiting for data (%)"]
        lines += ["## training", "", *grid(header, facts), ""]
    lines += ["## runs", ""]
    for run in runs:
        lines += [*provenance(run), ""]
    return "\n".join(lines)
