"""Checkpoints of a run: a folder that appears whole, by one rename, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

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
    target = folder / f"checkpoint-{state.step:07d}"
    temporary = folder / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in state.weights.items()}, temporary / "weights.safetensors")
    if state.mean:
        save_file({name: value.cpu().contiguous() for name, value in state.mean.items()}, temporary / "mean.safetensors")
    torch.save(state.optimizer, temporary / "optimizer.pt")
    told = {"step": state.step, "config": json.loads(config.to_json()), "rows": state.rows, "seconds": state.seconds}
    (temporary / "state.json").write_text(json.dumps(told))
    if target.exists():
        shutil.rmtree(target)
    os.replace(temporary, target)
    for old in checkpoints(folder)[:-1]:
        shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, the last one last."""
    return sorted(folder.glob("checkpoint-*"))


def read(config: Config, folder: Path) -> State | None:
    """The last checkpoint of a run, which must be one of this config; None if there is none."""
    found = checkpoints(folder)
    if not found:
        return None
    try:
        told = json.loads((found[-1] / "state.json").read_text())
        weights = load_file(found[-1] / "weights.safetensors")
        mean = load_file(found[-1] / "mean.safetensors") if (found[-1] / "mean.safetensors").exists() else {}
        optimizer = torch.load(found[-1] / "optimizer.pt", weights_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{found[-1]}: not a readable checkpoint ({error}); delete it to begin anew") from None
    _check_same(told["config"], json.loads(config.to_json()), found[-1])
    return State(told["step"], weights, mean, optimizer, told["rows"], told["seconds"])


def _check_same(old: dict[str, Any], new: dict[str, Any], where: Path) -> None:
    differ = [name for name in new if name not in FREE and old.get(name) != new[name]]
    if differ:
        name = differ[0]
        raise ValueError(
            f"{where} is of a run with {name}={old.get(name)!r}, not {new[name]!r}: give another --output, or the same"
        )
