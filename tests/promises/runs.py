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

from train.config import Config
from train.engine import Trainer
from train.kills import TINY, pictures, same, state

__all__ = ["TINY", "apart", "die", "exit_code", "free_port", "killed", "pictures", "same", "state", "tiny"]


def tiny(**changes: Any) -> Config:
    """Glyphs of four classes: epochs of 5 steps."""
    given = {"model_kwargs": TINY, "img_size": (16,), "classes": "0123", "train_samples": 40, "val_samples": 20, "steps": 8}
    usual = {"tests": ("zoom",), "batch_size": 8, "workers": 0, "threads": 1, "warmup_steps": 2, "save_every": 2}
    return Config(**{**given, **usual, **changes})


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
