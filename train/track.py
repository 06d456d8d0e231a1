"""Following a run in TensorBoard, Weights & Biases or Trackio: its losses, learning rates, accuracies and config.

The trackers read the events that the run tells anyway. A run that goes on is the same run to them: its name is kept in
`track.json` in its folder. TensorBoard's files and those of Weights & Biases lie in that folder too; Trackio has one folder
for all runs (`TRACKIO_DIR`). Nothing leaves the machine unless the environment says so: `WANDB_API_KEY` or `WANDB_MODE`,
`TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`.
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rope_nd._check import choose
from train.durable import publish

Event = dict[str, Any]
Tracker = Literal["tensorboard", "wandb", "trackio"]
PROJECT, NAME = "rope_nd", "track.json"
Log, Close = Callable[[Mapping[str, float], int], None], Callable[[], None]


def numbers(event: Event) -> dict[str, float]:
    """What an event says in numbers, by the name of a curve."""
    if event["event"] == "step":
        return {"loss": event["loss"], **({"lr": event["lr"]} if "lr" in event else {})}
    if event["event"] == "skipped":
        return {"skipped in a row": float(event["in_a_row"])}
    if event["event"] in ("measured", "trained"):
        return {"accuracy": event["accuracy"], **{f"accuracy {test}": found for test, found in event["accuracies"].items()}}
    return {}


def at(event: Event) -> int:
    """The updates that were done when an event was told."""
    return int(event["steps" if event["event"] == "trained" else "step"])


@dataclass
class Followed:
    """One run under a tracker, which is begun with the first number: on the first process alone, and where the run goes on."""

    begin: Callable[[Path, dict[str, Any], str, int], tuple[Log, Close]]
    folder: Path
    config: dict[str, Any]
    opened: list[tuple[Log, Close]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        found = numbers(event)
        if found and not self.opened:
            self.opened.append(self.begin(self.folder, self.config, name_of(self.folder), at(event)))
        for log, _ in self.opened if found else ():
            log(found, at(event))

    def end(self) -> None:
        for _, close in self.opened:
            close()


@contextmanager
def following(tracker: str | None, folder: Path, config: dict[str, Any], report: Callable[[Event], None]) -> Iterator[Any]:
    """A `report` of the Trainer that also tells `tracker` (None: no one); what is begun is ended, however the run ends."""
    if tracker is None:
        yield report
        return
    needed(tracker)
    run = Followed(BEGIN[choose("tracker", tracker, BEGIN)], folder, config)

    def both(event: Event) -> None:
        report(event)
        run.take(event)

    try:
        yield both
    finally:
        run.end()


def needed(tracker: str) -> None:
    """Raise ValueError where the tracker's package is missing."""
    try:
        importlib.import_module(choose("tracker", tracker, BEGIN))
    except ImportError as error:
        raise ValueError(f"--track {tracker} needs the package {tracker}: pip install {tracker} ({error})") from None


def name_of(folder: Path) -> str:
    """The name that trackers know a run by, unlike all others; the same when the run goes on."""
    if not (folder / NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        publish(folder / NAME, json.dumps({"name": f"{folder.name}-{uuid.uuid4().hex[:8]}"}))
    return str(json.loads((folder / NAME).read_text())["name"])


def tensorboard(folder: Path, config: dict[str, Any], name: str, step: int) -> tuple[Log, Close]:
    """Curves in `folder/tensorboard`; what an interrupted part told of this step and later ones is taken back."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)
    writer.add_text("config", f"```json\n{json.dumps(config, indent=2)}\n```", step)

    def log(found: Mapping[str, float], step: int) -> None:
        for curve, value in found.items():
            writer.add_scalar(curve, value, step)

    return log, writer.close


def wandb(folder: Path, config: dict[str, Any], name: str, step: int) -> tuple[Log, Close]:
    """A run of the project rope_nd, or `WANDB_PROJECT`. Without a key in `WANDB_API_KEY` it stays in `folder/wandb` for `wandb
    sync`, unless `WANDB_MODE` says otherwise. Steps that it has already are left as they were: they were the same."""
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    quiet = wandb.Settings(silent=True, console="off")
    told: dict[str, Any] = {"project": project, "name": name, "id": name, "dir": str(folder), "config": config, "mode": mode}
    run: Any = wandb.init(**told, resume="allow", settings=quiet)
    return lambda found, step: run.log(dict(found), step=step), run.finish


def trackio(folder: Path, config: dict[str, Any], name: str, step: int) -> tuple[Log, Close]:
    """A run of the project rope_nd. Steps that an interrupted part told already are there twice, with the same numbers."""
    import trackio

    quiet: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    run: Any = trackio.init(PROJECT, name=name, config=config, resume="allow", **quiet)
    return lambda found, step: run.log(dict(found), step=step), run.finish


BEGIN: dict[str, Callable[[Path, dict[str, Any], str, int], tuple[Log, Close]]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
}
