"""A run's checkpoints: which one to go on from, whether it is of this run, and what is kept in it."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn

from train import checkpoint, cli, processes
from train.checkpoint import CheckpointError, Saved
from train.config import Config
from train.durable import hold
from train.sharding import fitting, joined, parted

# a run goes on with other values of these
FREE = (
    *("workers", "threads", "output", "experiment", "save_every", "keep", "max_skipped", "max_bad", "max_pixels", "cache"),
    *("device", "fsdp"),
)
BITS = "torch", "timm", "python", "threads", "device", "cpu", "processes", "fsdp"  # where these differ, last bits may
SECONDS, SHARE = 60.0, 0.05  # where no number of updates is given: how often to save, and at most this share of the time


@dataclass
class Progress:
    """What a run has done so far; all but the times are the same however often it was interrupted."""

    step: int = 0
    loss: float | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    """What was told of its steps and measurements."""
    best: dict[str, Any] | None = None
    """The step of the highest accuracy measured on the way, and it."""
    skipped: int = 0
    in_a_row: int = 0
    """Updates left out since the last good one."""
    seconds: float = 0.0
    waited: float = 0.0


def find(root: Path, resume: str, *, by_rows: bool = False) -> tuple[Saved | None, list[str]]:
    """The checkpoint to go on from, and what is to be said of it. `resume`: auto, none, or a path."""
    if resume == "none":
        if checkpoint.steps(root):
            raise ValueError(f"{root} holds checkpoints: go on with --resume auto, or give another --experiment")
        return None, []
    if resume != "auto":
        found = checkpoint.read(checkpoint.chosen(Path(resume)), by_rows=by_rows)
        if newer := [path.name for path in checkpoint.steps(root) if int(path.name[5:]) > found.step]:
            raise ValueError(
                f"{root} holds newer checkpoints, {', '.join(newer)}: --resume auto, another --experiment, or delete them"
            )
        return found, [f"going on from {found.path}"]
    newest, broken = checkpoint.newest(root, by_rows=by_rows)
    notes = [f"passed over: {error}" for error in broken]
    if newest is None and broken:
        raise CheckpointError(f"{root}: no checkpoint is whole; the newest: {broken[0]}; to begin anew, delete {root}")
    return newest, notes if newest is None else [*notes, f"going on from {newest.path}"]


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], where: Path, free: tuple[str, ...] = FREE) -> None:
    """Refuse to go on with what is not the same run, and say all differences. A field that one side lacks is not compared."""
    differ = [name for name in new if name in old and name not in free and old[name] != new[name]]
    if differ:
        told = "; ".join(f"{name}={old[name]!r}, not {new[name]!r}" for name in differ)
        raise ValueError(f"{where} is of a run with {told}: give the same, or another folder for the new run")


def identity(config: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """What makes a run: its config, but that batches may be shared out over another number of processes."""
    return {**config, "batch_size": f"{config['batch_size'] * processes} on all processes"}


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What to say where the machine or a library is another one."""
    differ = [f"{name} was {old[name]}, is {new[name]}" for name in BITS if name in old and old[name] != new.get(name)]
    return [f"the last bits may not be those of an uninterrupted run: {'; '.join(differ)}"] if differ else []


@dataclass
class Parts:
    """What a checkpoint holds the state of."""

    model: nn.Module
    ema: nn.Module | None
    optimizer: torch.optim.Optimizer
    schedule: Scheduler | None
    scaler: torch.amp.GradScaler

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        shared, _ = parted(self.optimizer.state_dict())
        held = {"model": self.model.state_dict(), **({} if self.ema is None else {"ema": self.ema.state_dict()})}
        return {**held, **({"optimizer": shared} if shared else {})}

    def state(self) -> dict[str, Any]:
        schedule = {} if self.schedule is None else self.schedule.state_dict()
        return {"optimizer": parted(self.optimizer.state_dict())[1], "schedule": schedule, "scaler": self.scaler.state_dict()}

    def load(self, found: Saved) -> None:
        stored: Mapping[str, Mapping[str, Any]] = found.pieces or found.tensors
        self.model.load_state_dict(fitting(stored["model"], self.model))
        if self.ema is not None:
            self.ema.load_state_dict(fitting(stored["ema"], self.ema))
        self.optimizer.load_state_dict(joined(found.state["optimizer"], stored.get("optimizer", {}), self.optimizer))
        if self.schedule is not None:
            self.schedule.load_state_dict(found.state["schedule"])
        self.scaler.load_state_dict(found.state["scaler"])


class Record:
    """The checkpoints of one run, under `root`; `notes` are to be told. `shared`: each process has some rows of the state."""

    def __init__(self, config: Config, root: Path, samples: int, *, rank: int = 0, world: int = 1, shared: bool = False) -> None:
        self.config, self.root, self.rank, self.world, self.shared = config, root, rank, world, shared
        self.fixed = {"processes": world, "training samples": samples}  # beside the config
        self.before: list[dict[str, Any]] = []  # facts of the parts of this run before this one
        self.begun, self.notes = 0, list[str]()
        self.clock = Clock(config.save_every)
        self.lock: int | None = None

    def claim(self) -> None:
        """On the first process: see that no other run writes here, and clear away what a crash left. What is not there yet is not
        made; `save` claims it then."""
        if self.rank == 0 and self.lock is None and self.root.is_dir():
            self.lock = hold(self.root / "lock")
            checkpoint.tidy(self.root)

    def take_up(self, parts: Parts, resume: str) -> Progress:
        """Load the checkpoint to go on from into `parts`, if there is one: the one that the first process finds whole."""
        found: Saved | None = None

        def look() -> tuple[Path | None, list[str]]:
            nonlocal found
            self.claim()
            found, notes = find(self.root, resume, by_rows=self.shared)
            return None if found is None else found.path, notes

        def read() -> None:
            nonlocal found
            if found is None and path is not None:
                found = checkpoint.read(path, by_rows=self.shared, proven=True)

        path, self.notes = processes.first(look, self.rank, self.world)
        processes.each(read, self.world)
        if found is None:
            return Progress()
        told = found.told["facts"]
        self._check(found, told["fixed"])
        parts.load(found)
        self.before, self.begun = told["parts"], found.step
        self.notes += changed(self.before[-1], self.facts)
        return Progress(**found.told["progress"])

    def _check(self, found: Saved, fixed: dict[str, Any]) -> None:
        """Whether it is of this run."""
        usual = json.loads(Config().to_json())  # of fields that were not there yet
        old = {**identity({**usual, **found.told["config"]}, fixed["processes"]), **fixed, "processes": self.world}
        check_same(old, {**identity(json.loads(self.config.to_json()), self.world), **self.fixed}, found.path)

    def save(self, parts: Parts, progress: Progress) -> Path:
        """Write a checkpoint; all processes together, where each has some rows."""
        began = time.monotonic()
        with checkpoint.explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            self.claim()
        told = {"config": json.loads(self.config.to_json()), "progress": dataclasses.asdict(progress), "facts": self.told()}
        best = None if progress.best is None else progress.best["step"]
        given = {"tensors": parts.tensors(), "state": parts.state(), "told": told}
        where = {"rank": self.rank, "world": self.world} if self.shared else {}
        path = checkpoint.write(self.root, progress.step, **given, keep=self.config.keep, best=best, **where)
        self.clock.saved(began)
        return path

    def due(self, step: int) -> bool:
        return self.clock.due(step)

    def told(self) -> dict[str, Any]:
        """Everything that a run is recorded with, for each part of it."""
        return {"config": json.loads(self.config.to_json()), "fixed": self.fixed, "parts": [*self.before, self.facts]}

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Command, commit, whether files differ from it, versions, threads and machine."""
        told = cli.facts()
        where = {"processes": self.world, "fsdp": self.shared, "device": self.config.device, "from_step": self.begun}
        return {**told, "dirty": told["commit"].endswith("+dirty"), **cli.machine(), **where}


class Clock:
    """Says when to save: every so many updates, or each minute, unless saving takes more than a twentieth of the time."""

    def __init__(self, every: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self.every, self.now = every, now
        self.next = now() + SECONDS

    def due(self, step: int) -> bool:
        return self.now() >= self.next if self.every is None else step % self.every == 0

    def saved(self, began: float) -> None:
        self.next = self.now() + max(SECONDS, (self.now() - began) / SHARE)
