"""`python -m train --model vit_tiny_patch16_224 --encoding axial ...`: train one model; the same command goes on with it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from train import checkpoint, cli
from train.config import Config
from train.durable import publish
from train.engine import Trainer
from train.processes import number
from train.resume import FREE, identity
from train.stop import Stopped
from train.track import Tracker, following


def run_folder(config: Config, resume: str) -> Path:
    """The run's folder: the one that is named, or one of the same config that was not finished, or a new one."""
    if config.experiment:
        folder = Path(config.output) / config.experiment
    elif resume == "auto" and (left := unfinished(config)) is not None:
        return left
    else:
        folder = Path(config.output) / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.model}-{config.title}"
    if (folder / "config.json").exists() and not checkpoint.steps(folder / "checkpoints"):
        raise ValueError(f"{folder} holds a run already: give another --experiment")
    return folder


def unfinished(config: Config) -> Path | None:
    """The newest run of this config, under a name made of its time, that has a checkpoint but no model yet."""
    wanted = _fixed(json.loads(config.to_json()), number())
    for folder in sorted(Path(config.output).glob(f"*-{config.model}-{config.title}"), reverse=True):
        if not (folder / "model.safetensors").exists():
            found, _ = checkpoint.newest(folder / "checkpoints", by_rows=True)
            if found is not None and _fixed(found.told["config"], found.told["facts"]["fixed"]["processes"]) == wanted:
                return folder
    return None


def _fixed(config: dict[str, Any], processes: int) -> dict[str, Any]:
    return {name: value for name, value in identity(config, processes).items() if name not in FREE}


def main(config: Annotated[Config, tyro.conf.arg(name="")], resume: str = "auto", track: Tracker | None = None) -> None:
    """Train a timm model, wrapped with a position encoding, on images, clips or volumes.

    Args:
        config: What to train.
        resume: auto goes on from the newest whole checkpoint in the run's folder, if there is one; none begins a new run; a path
            (a folder step-.., or a run's folder) goes on from there, or fails. Other --workers, --threads, --save-every, --keep,
            --max-skipped, --max-bad, --max-pixels, --cache, --device, --fsdp and --output may then be given, and another number of
            processes with a --batch-size that makes as much on all of them; nothing else that changes the run.
        track: Also tell losses, learning rates and accuracies to tensorboard, wandb (offline without a key) or trackio.
    """
    folder = run_folder(config, resume)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=cli.console, disable=not cli.console.is_terminal) as progress:
        bar = progress.add_task("preparing", total=None)

        def report(event: dict[str, Any]) -> None:
            if event["event"] == "step":
                progress.update(bar, completed=event["step"], total=event["steps"], description=f"loss {event['loss']:.3f}")
            elif event["event"] in ("note", "skipped", "measured", "bad"):
                progress.console.print(_line(event), highlight=False, soft_wrap=True)

        try:
            with following(track, folder, json.loads(config.to_json()), report) as told:
                trainer = Trainer(config, folder, told, resume)
                trained = trainer.fit()
        except Stopped:
            progress.console.print(f"asked to end: step {trainer.progress.step} is saved in {folder}; the same command goes on")
            raise
    if trainer.rank > 0:
        return
    facts = cli.facts()
    publish(folder / "log.jsonl", "".join(json.dumps({**event, **facts}) + "\n" for event in trainer.progress.log))
    for test, accuracy in trained["accuracies"].items():
        cli.console.print(f"{test} accuracy at {'x'.join(map(str, config.size))}: {accuracy:.4f}")
    cli.console.print(f"{trained['seconds']:.0f} s, {100 * trained['wait_share']:.1f} % of it waiting for data; saved in {folder}")


def _line(event: dict[str, Any]) -> str:
    """An event in one line."""
    if event["event"] == "skipped":
        return f"step {event['step']} left out, its loss or gradients are not finite; samples {event['samples']}"
    if event["event"] == "bad":
        return f"left out: {event['why']}"
    if event["event"] == "measured":
        return f"step {event['step']}: accuracy {event['accuracy']:.4f}"
    return str(event["note"])


if __name__ == "__main__":
    cli.run(
        main,
        "python -m train",
        shown=(
            "model",
            "encoding",
            "dataset",
            "data_dir",
            "img_size",
            "steps",
            "epochs",
            "batch_size",
            "lr",
            "seed",
            "device",
            "experiment",
            "resume",
            "track",
        ),
    )
