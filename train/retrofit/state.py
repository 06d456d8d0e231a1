"""What a checkpoint of a retrofit holds; how it is written and read is `train.checkpoint`'s."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from train import checkpoint
from train.resume import check_same, find
from train.retrofit.config import Config

FREE = "stop_after", "threads", "output", "device", "save_every"  # may differ when a run goes on


@dataclass
class State:
    """After `step` steps: the weights that train, their running mean if there is one, the optimiser, and what was measured."""

    step: int
    weights: dict[str, Tensor]
    mean: dict[str, Tensor]
    optimizer: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def write(state: State, config: Config, folder: Path) -> Path:
    """Write a checkpoint, and take away those before it."""
    tensors = {"weights": state.weights, **({"mean": state.mean} if state.mean else {})}
    told = {"config": json.loads(config.to_json()), "progress": {"rows": state.rows, "seconds": state.seconds}}
    given = {"tensors": tensors, "state": {"optimizer": state.optimizer}, "told": told}
    return checkpoint.write(folder / "checkpoints", state.step, **given, keep=1)


def read(config: Config, folder: Path) -> tuple[State | None, list[str]]:
    """The newest whole checkpoint of a run, which must be of this config, if there is one, and what is to be said of it."""
    checkpoint.tidy(folder / "checkpoints")
    found, notes = find(folder / "checkpoints", "auto")
    if found is None:
        return None, notes
    check_same(found.told["config"], json.loads(config.to_json()), found.path, FREE)
    progress = found.told["progress"]
    return State(found.step, found.tensors["weights"], found.tensors.get("mean", {}), found.state["optimizer"], **progress), notes
