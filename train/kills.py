"""`python -m train.kills --kills 100`: one small training, killed again and again at random moments, against one left alone.

Each life is the same command with `--workers` 0, 1 or 2, drawn anew. It is killed with SIGKILL, alone or with its loader's workers:
one in ten while it starts, the others up to `longest` seconds after it went on from its checkpoint, which is in a step, between
steps, or in a save. Then a last life ends the training. Every tensor, the optimiser's and schedule's state, the random state, the
log's losses and the final model must be those of the run that was left alone, to the bit; `kills.jsonl` has a line a life.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from train import checkpoint, cli

TIMES = "seconds", "waited", "wait_share"
TINY = ("patch_size=8", "embed_dim=16", "depth=2", "num_heads=2", "mlp_ratio=2", "class_token=False", "global_pool=avg")
SAVE_EVERY = 3


def pictures(root: Path, count: int = 20) -> Path:
    """A folder of two classes of noise, `count` pictures of each for training and as many for validation."""
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for name in ("light", "dark"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                noise = torch.randint(100, (20, 24, 3), generator=generator, dtype=torch.uint8) + 150 * (name == "light")
                Image.fromarray(noise.numpy()).save(root / split / name / f"{i}.png")
    return root


def state(folder: Path) -> tuple[Any, ...]:
    """All that a run's newest checkpoint and its model hold, but for times."""
    found, broken = checkpoint.newest(folder / "checkpoints")
    if found is None or broken:
        raise RuntimeError(f"{folder}: {'; '.join(map(str, broken)) or 'no checkpoint'}")
    model = folder / "model.safetensors"
    weights = safetensors.torch.load_file(model) if model.exists() else {}
    return found.step, found.tensors, found.state, timeless(found.told["progress"]), weights


def timeless(thing: Any) -> Any:
    """What is told, without how long it took."""
    if isinstance(thing, dict):
        return {key: timeless(value) for key, value in thing.items() if key not in TIMES}
    return [timeless(part) for part in thing] if isinstance(thing, list) else thing


def same(one: Any, two: Any) -> bool:
    """Equal to the bit, in whatever is nested."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two))
    return bool(one == two)


def command(data: Path, folder: Path, steps: int, workers: int) -> list[str]:
    """A training on pictures with all that draws at random: augmentation, mixup, drop path; with a moving average."""
    drawn = "--aa rand-m9-mstd0.5-inc1 --mixup 0.3 --drop-path 0.2 --model-ema --shift-coords 1 --encoding mixed"
    fixed = f"{drawn} --dataset folder --img-size 16 --tests zoom --batch-size 8 --threads 1 --save-every {SAVE_EVERY}"
    given = ["--data-dir", data, "--output", folder, "--experiment", "run", "--steps", steps, "--workers", workers]
    return [sys.executable, "-m", "train", "--model-kwargs", *TINY, *fixed.split(), *map(str, given)]


def life(command: list[str], said: Path, begun: Callable[[], bool], moment: float, *, group: bool) -> int:
    """Run it and kill it `moment` seconds after `begun`; returns its exit code. What it says is written to `said`."""
    with said.open("w") as out:
        process = subprocess.Popen(command, cwd=cli.ROOT, start_new_session=True, stdout=out, stderr=subprocess.STDOUT)
    while process.poll() is None and not begun():
        time.sleep(0.005)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    return process.wait()


def lives(data: Path, folder: Path, *, kills: int, steps: int, longest: float, seed: int, minutes: float) -> list[dict[str, Any]]:
    """Lives until `kills` of them were killed, each with what it found and how it ended."""
    draw, told, until = random.Random(seed), list[dict[str, Any]](), time.monotonic() + 60 * minutes
    said = folder / "said.txt"
    folder.mkdir()
    for number in track(range(kills), description="killing", console=cli.console):
        before = steps_saved(folder)

        def going(before: int = before) -> bool:
            return "going on from" in said.read_text() if before else steps_saved(folder) > 0

        starting, group, workers = draw.random() < 0.1, draw.random() < 0.5, draw.randrange(3)
        moment = draw.uniform(0, 6 if starting else longest)
        code = life(command(data, folder, steps, workers), said, (lambda: True) if starting else going, moment, group=group)
        if code not in (0, -signal.SIGKILL):
            raise RuntimeError(f"life {number} ended by itself with exit code {code}: {said.read_text()[-1000:]}")
        drawn = {"life": number, "starting": starting, "group": group, "workers": workers, "moment": round(moment, 3)}
        told.append({**drawn, "from_step": before, "to_step": steps_saved(folder), **left(folder, said), "code": code})
        if code == 0 or time.monotonic() > until:
            break
    return told


def left(folder: Path, said: Path) -> dict[str, int]:
    """Checkpoints that were half written when a life ended, and broken ones that it had passed over."""
    half = sum(1 for _ in (folder / "run" / "checkpoints").glob(".*"))
    return {"half_written": half, "passed_over": said.read_text().count("passed over")}


def steps_saved(folder: Path) -> int:
    """The step of the newest checkpoint, 0 without one."""
    return max((int(path.name[5:]) for path in checkpoint.steps(folder / "run" / "checkpoints")), default=0)


def losses(folder: Path) -> list[Any]:
    """What the log says of each event, without times."""
    wanted = ("event", "step", "loss", "accuracy")
    lines = (json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines())
    return [[line.get(name) for name in wanted] for line in lines]


def main(to: Path, kills: int = 100, steps: int = 2000, longest: float = 1.5, seed: int = 0, minutes: float = 60.0) -> None:
    """Kill a small training at random moments and compare it, to the bit, with one that was left alone.

    Args:
        to: A new folder for both runs and for kills.jsonl.
        kills: How many lives are killed.
        steps: Updates of the training; it must not end before the last kill.
        longest: Seconds after going on within which a life is killed.
        seed: Of the moments.
        minutes: No life begins after these.
    """
    if to.exists():
        raise ValueError(f"{to} exists: give another --to")
    began, data = time.monotonic(), pictures(to / "data")
    subprocess.run(command(data, to / "whole", steps, 2), cwd=cli.ROOT, check=True, stdout=subprocess.DEVNULL)
    told = lives(data, to / "parts", kills=kills, steps=steps, longest=longest, seed=seed, minutes=minutes)
    (to / "kills.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    subprocess.run(command(data, to / "parts", steps, 1), cwd=cli.ROOT, check=True, stdout=subprocess.DEVNULL)
    mismatches = [not same(state(to / "parts" / "run"), state(to / "whole" / "run")), losses(to / "parts") != losses(to / "whole")]
    summary = {**summed(told), "mismatches": sum(mismatches), "steps": steps, "seconds": round(time.monotonic() - began)}
    (to / "summary.json").write_text(json.dumps({**summary, **cli.facts(), "machine": cli.machine()}, indent=2))
    cli.console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary.items()))
    if sum(mismatches) or summary["kills"] < kills:
        raise RuntimeError(f"{sum(mismatches)} mismatches after {summary['kills']} of {kills} kills")


def summed(told: list[dict[str, Any]]) -> dict[str, int]:
    """How many lives were killed, and how."""
    killed = [line for line in told if line["code"] != 0]
    count = Counter(name for line in killed for name in ("starting", "group") if line[name])
    return {
        "kills": len(killed),
        "while_starting": count["starting"],
        "with_their_workers": count["group"],
        "resumes": sum(line["from_step"] > 0 for line in told) + 1,
        "left_half_a_checkpoint": sum(line["half_written"] > 0 for line in killed),
        "passed_over_a_broken_one": sum(line["passed_over"] > 0 for line in told),
        "lives_that_saved_nothing": sum(line["from_step"] == line["to_step"] for line in killed),
    }


if __name__ == "__main__":
    cli.run(main, "python -m train.kills")
