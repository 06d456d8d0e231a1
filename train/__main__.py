"""`python -m train --model vit_tiny_patch16_224 --encoding axial ...`: train one model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from train import cli
from train.config import Config
from train.engine import Trainer


def fresh_folder(config: Config) -> Path:
    """The run's folder, which must not hold a run yet."""
    name = config.experiment or f"{time.strftime('%Y%m%d-%H%M%S')}-{config.model}-{config.title}"
    folder = Path(config.output) / name
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} holds a run already: give another --experiment")
    return folder


def main(config: Annotated[Config, tyro.conf.arg(name="")]) -> None:
    """Train a timm model, wrapped with a position encoding, on images, clips or volumes."""
    folder = fresh_folder(config)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=cli.console) as progress:
        bar = progress.add_task("preparing", total=None)
        log: list[dict[str, Any]] = []

        def report(event: dict[str, Any]) -> None:
            log.append(event)
            if event["event"] == "step":
                progress.update(bar, completed=event["step"], total=event["steps"], description=f"loss {event['loss']:.3f}")

        trained = Trainer(config, folder, report).fit()
    facts = cli.facts()
    (folder / "log.jsonl").write_text("".join(json.dumps({**event, **facts}) + "\n" for event in log))
    for test, accuracy in trained["accuracies"].items():
        cli.console.print(f"{test} accuracy at {'x'.join(map(str, config.size))}: {accuracy:.4f}")
    cli.console.print(f"{trained['seconds']:.0f} s, {100 * trained['wait_share']:.1f} % of it waiting for data; saved in {folder}")


if __name__ == "__main__":
    cli.run(main, "python -m train")
