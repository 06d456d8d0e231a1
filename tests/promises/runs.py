"""Small runs, in processes of their own that may be killed, and what is compared of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from PIL import Image
from torch import Tensor

from train import checkpoint
from train.config import Config
from train.engine import Trainer

TINY = ("patch_size=8", "embed_dim=16", "depth=2", "num_heads=2", "mlp_ratio=2", "class_token=False", "global_pool=avg")
TIMES = "seconds", "waited", "wait_share"


def tiny(**changes: Any) -> Config:
    """Glyphs of four classes: epochs of 5 steps."""
    given = {"model_kwargs": TINY, "img_size": (16,), "classes": "0123", "train_samples": 40, "val_samples": 20, "steps": 8}
    usual = {"tests": ("zoom",), "batch_size": 8, "workers": 0, "threads": 1, "warmup_steps": 2, "save_every": 2}
    return Config(**{**given, **usual, **changes})


def pictures(root: Path, count: int = 20) -> Path:
    """A folder of two classes of noise; epochs of 5 steps."""
    random = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for name in ("light", "dark"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                noise = torch.randint(100, (20, 24, 3), generator=random, dtype=torch.uint8) + 150 * (name == "light")
                Image.fromarray(noise.numpy()).save(root / split / name / f"{i}.png")
    return root


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def apart(work: Callable[..., Any], *given: Any) -> Any:
    """A process of its own, begun: the child of a server that never trained, since one that has may not fork and train again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.promises.runs"])
    usual = multiprocessing.get_start_method()
    process = context.Process(target=_work, args=(cloudpickle.dumps((work, given)), dict(os.environ), usual))
    process.start()
    return process


def _work(pickled: bytes, environment: dict[str, str], usual: str) -> None:
    os.environ.update(environment)
    multiprocessing.set_start_method(usual, force=True)
    work, given = cloudpickle.loads(pickled)
    work(*given)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def exit_code(process: Any, within: float = 120.0) -> int:
    process.join(within)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"still running after {within} s")
    return process.exitcode


def killed(config: Config, folder: Path, after: int) -> None:
    """A run that kills itself when it has done `after` steps, before anything is saved of the last one."""

    def run() -> None:
        trainer = Trainer(config, folder)
        look = trainer._look

        def dying(**told: bool) -> None:
            if trainer.progress.step == after:
                die()
            look(**told)

        trainer._look = dying
        trainer.fit()

    assert exit_code(apart(run)) == -signal.SIGKILL


def state(folder: Path) -> tuple[Any, ...]:
    """All that a run's newest checkpoint and its model hold, but for times."""
    found, broken = checkpoint.newest(folder / "checkpoints")
    assert found is not None and not broken
    weights = (
        checkpoint.safetensors.torch.load_file(folder / "model.safetensors") if (folder / "model.safetensors").exists() else {}
    )
    return found.step, found.tensors, found.state, timeless(found.told["progress"]), weights


def timeless(thing: Any) -> Any:
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
