"""`python -m train.retrofit --model NAME --weights FILE --data FOLDER`: give a pretrained model rotary positions."""

from __future__ import annotations

import json
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from train import cli
from train.retrofit.config import Config
from train.retrofit.engine import Retrofit


def main(config: Annotated[Config, tyro.conf.arg(name="")]) -> None:
    """Give a pretrained timm model rotary positions. The same command goes on with a run that was interrupted."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=cli.console, disable=not cli.console.is_terminal) as progress:
        bar = progress.add_task("preparing", total=None)

        def report(event: dict[str, Any]) -> None:
            for row in event.get("rows", ()):
                told = f"step {row['step']}, {row['size']} px: patches {row['patches']:.4f}, pooled {row['pooled']:.4f}"
                progress.console.print(f"{told}, {row['seconds']:.0f} s")
            if "note" in event:
                progress.console.print(event["note"], highlight=False, soft_wrap=True)
            if "loss" in event:
                progress.update(bar, completed=event["step"], total=event["steps"], description=f"loss {event['loss']:.4f}")

        run = Retrofit(config, report)
        run.fit()
    told = {**cli.facts(), "machine": cli.machine(), "seconds": run.seconds}
    (run.folder / "run.json").write_text(json.dumps(told, indent=2))
    cli.console.print(f"saved in {run.folder}")


if __name__ == "__main__":
    shown = (
        "model",
        "data",
        "weights",
        "pretrained",
        "encoding",
        "scaling",
        "train",
        "sizes",
        "steps",
        "batch_size",
        "lr",
        "device",
        "output",
    )
    cli.run(main, "python -m train.retrofit", shown=shown)
