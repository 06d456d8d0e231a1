"""`python -m train.extrapolate`: the study. Train one small model under each encoding, test it at up to eight times the size."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import queue
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rope_nd import list_encodings
from train import cli, sequence
from train.answers import answer_count
from train.config import Config
from train.durable import publish
from train.engine import Trainer
from train.evaluate import KEPT, measure
from train.kept import Kept
from train.report import print_table, report
from train.rows import COSTS, Row, read_rows, write_rows
from train.rules import usable
from train.samples import sheet
from train.stop import Stopped, stopped_by_sigterm
from train.study import Study, adapt, load, of

Event = dict[str, Any]


def main(
    recipe: str = "ten_minutes",
    encodings: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    steps: int | None = None,
    name: str | None = None,
    resume: str | None = None,
    output: Path = Path("runs"),
    jobs: int | None = None,
) -> None:
    """Train low, test high: a table, a picture and a page under runs/NAME.

    Args:
        recipe: A name under train/recipes, or a recipe file.
        encodings: Instead of the recipe's; all for every encoding.
        seeds: Instead of the recipe's.
        steps: Training updates, instead of the recipe's.
        name: Name of the run's folder (default: the recipe's name and the first free number).
        resume: Name of a run to continue, with the recipe and options that it was started with.
        output: Folder of all runs.
        jobs: Models trained at a time, one thread each (default: one a core; one on a GPU).
    """
    if resume is not None:
        folder = output / resume
        recipe, encodings, seeds, steps = _started_with(folder)
    study, claim = load(recipe)
    study = adapt(study, encodings, seeds, steps)
    if resume is None:
        folder = _fresh(output, name, Path(recipe).stem)
        (folder / "parts").mkdir(parents=True)
    started = {"recipe": recipe, "encodings": encodings, "seeds": seeds, "steps": steps}
    facts = cli.facts()
    _write_config(folder, study, claim, started, facts)
    if not (folder / "samples.png").exists():
        sheet(study, folder / "samples.png")
    run(study, folder, facts, jobs or (1 if study.base.device == "cuda" else cli.cores()))
    page = report([folder])
    print_table(folder)
    cli.console.print(f"{_seconds(folder):.0f} s in all; {page}, plot.png, speed.png, table.md and rows.csv in {folder}")


def run(study: Study, folder: Path, facts: dict[str, str], jobs: int) -> None:
    """All models and the sequence row, `jobs` at a time; what an earlier run finished is kept."""
    tasks: list[tuple[str, Callable[..., list[Row]], tuple[Any, ...]]] = [
        (f"{config.title}-{config.seed}", _model, (study, config)) for config in study.models()
    ]
    if study.sequence is not None:
        tasks += [(f"sequence-{name}", _sequence, (study, name)) for name in study.encodings if name in list_encodings()]
    left = [task for task in tasks if not (folder / "parts" / f"{task[0]}.csv").exists()]
    context, before, start = multiprocessing.get_context("spawn"), _seconds(folder), time.monotonic()
    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = Progress(*columns, console=cli.console, disable=not cli.console.is_terminal)
    with stopped_by_sigterm(), context.Manager() as manager, shown as progress:
        events: queue.Queue[Event] = manager.Queue()
        bars = {"all": progress.add_task("study", total=len(tasks), completed=len(tasks) - len(left), note=f"{jobs} at a time")}
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            futures = [pool.submit(_guarded, work, task, folder, facts, events, *rest) for task, work, rest in left]
            try:
                while not all(future.done() for future in futures) or not events.empty():
                    _follow(events, progress, bars, folder)
                    _raise_first(futures)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list((pool._processes or {}).values()):
                    process.terminate()
                raise
            _raise_first(futures)
    _merge(study, folder)
    _update_config(folder, seconds=round(before + time.monotonic() - start, 1))


def _guarded(work: Callable[..., list[Row]], task: str, folder: Path, facts: dict[str, str], events: Any, *rest: Any) -> None:
    """One task in a process of its own; its rows appear whole or not at all."""

    def tell(event: Event) -> None:
        events.put({"task": task, **event})

    try:
        write_rows(folder / "parts" / f"{task}.csv", work(folder / task, facts, tell, *rest))
    except Stopped as stopped:  # it has saved; another task is not to begin in this process
        os._exit(int(stopped.code))
    tell({"event": "done"})


def _model(folder: Path, facts: dict[str, str], tell: Callable[[Event], None], study: Study, config: Config) -> list[Row]:
    """Train one model, or what is left of its training, unless it is there, and measure it."""
    torch.set_num_threads(config.threads or 1)
    if not (folder / "model.safetensors").exists():
        Trainer(config, folder, tell).fit()
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    rows, plan = [], [(at, count, usable(config.encoding, rules)) for at, count, rules in study.plan()]
    for row in measure(folder, plan, facts, Kept(folder / KEPT)):
        rows.append(row)
        tell({"event": "row", "note": f"{row.test} ×{row.ratio:.3g} {row.scaling}: {100 * row.accuracy:.1f} %"})
    return rows


def _sequence(folder: Path, facts: dict[str, str], tell: Callable[[Event], None], study: Study, encoding: str) -> list[Row]:
    """The plain 1-D task for one encoding."""
    torch.set_num_threads(1)
    rules = of(study.rules, "sequence")
    found = [row for seed in study.seeds for row in sequence.run(encoding, study.sequence, rules=rules, seed=seed, report=tell)]
    return [Row(**{"upper": None, **dict.fromkeys(COSTS), **row, **facts}) for row in found]


def _follow(events: Any, progress: Progress, bars: dict[str, Any], folder: Path) -> None:
    """Show what the processes tell, and keep what is worth keeping in log.jsonl."""
    try:
        event = events.get(timeout=0.5)
    except queue.Empty:
        return
    task = event.pop("task")
    if task not in bars:
        bars[task] = progress.add_task(task, total=None, note="starting")
    if event["event"] == "step":
        note = f"step {event['step']}/{event['steps']}, loss {event['loss']:.3f}"
        progress.update(bars[task], completed=event["step"], total=event["steps"], note=note)
    elif event["event"] == "row":
        progress.update(bars[task], note=event["note"])
    elif event["event"] == "done":
        progress.update(bars[task], visible=False)
        progress.advance(bars["all"])
    if event["event"] in ("note", "skipped", "trained", "done"):
        with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task": task, "time": time.strftime("%H:%M:%S"), **event}) + "\n")


def _raise_first(futures: list[Future[None]]) -> None:
    for future in futures:
        if not future.done() or (error := future.exception()) is None:
            continue
        if isinstance(error, BrokenProcessPool):
            raise ValueError("a process of the study was killed (too little memory? lower --jobs): go on with --resume") from error
        raise error


def _merge(study: Study, folder: Path) -> None:
    """rows.csv and sequence.csv out of the finished parts, in the study's order."""
    parts = [folder / "parts" / f"{config.title}-{config.seed}.csv" for config in study.models()]
    write_rows(folder / "rows.csv", [row for part in parts if part.exists() for row in read_rows(part)])
    parts = [folder / "parts" / f"sequence-{encoding}.csv" for encoding in study.encodings]
    if rows := [row for part in parts if part.exists() for row in read_rows(part)]:
        write_rows(folder / "sequence.csv", rows)


def _fresh(output: Path, name: str | None, stem: str) -> Path:
    """A folder that does not exist yet."""
    if name is not None:
        if (output / name).exists():
            raise ValueError(f"{output / name} exists: give another --name, or continue it with --resume {name}")
        return output / name
    return next(path for i in range(1, 10**6) if not (path := output / f"{stem}-{i:03}").exists())


def _started_with(folder: Path) -> tuple[str, tuple[str, ...], tuple[int, ...], int | None]:
    try:
        started = json.loads((folder / "config.json").read_text())["started"]
        return started["recipe"], tuple(started["encodings"]), tuple(started["seeds"]), started["steps"]
    except (OSError, KeyError, TypeError, json.JSONDecodeError):
        raise ValueError(f"{folder}: no run of train.extrapolate to resume there") from None


def _write_config(folder: Path, study: Study, claim: str, started: dict[str, Any], facts: dict[str, str]) -> None:
    base = study.base
    classes = {"glyphs": base.characters, "moving": f"moving {base.question}"}.get(base.dataset, base.dataset)
    found = {} if (count := answer_count(base)) is None else {"chance": 1 / count}
    told = {"name": folder.name, "recipe": started["recipe"], "claim": claim, **facts, "dirty": facts["commit"].endswith("+dirty")}
    told |= {
        "machine": cli.machine(),
        "classes": classes,
        "train_size": base.size,
        "train_kind": base.kind,
        **found,
        "seconds": _seconds(folder),
    }
    told |= {"encodings": study.encodings, "seeds": study.seeds, "study": dataclasses.asdict(study), "started": started}
    publish(folder / "config.json", json.dumps(told, indent=2))


def _update_config(folder: Path, **changes: Any) -> None:
    publish(folder / "config.json", json.dumps(json.loads((folder / "config.json").read_text()) | changes, indent=2))


def _seconds(folder: Path) -> float:
    """Wall time that the study has taken so far."""
    path = folder / "config.json"
    return float(json.loads(path.read_text()).get("seconds", 0.0)) if path.exists() else 0.0


if __name__ == "__main__":
    cli.run(main, "python -m train.extrapolate")
