"""What all command lines share: one clear line and exit code 2 for bad input, 1 for a dead worker, 130 on interrupt; and facts."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
import tyro
from rich.console import Console

from rope_nd._command import ending, told
from train.brief import brief
from train.sift import WorkerLost


class Screen(Console):
    """Where nobody reads on, it says so as print does."""

    def on_broken_pipe(self) -> None:
        raise


console = Screen(no_color=True if "--no-color" in sys.argv else None)
ROOT = Path(__file__).resolve().parent.parent


def run(main: Callable[..., Any], program: str, shown: tuple[str, ...] = ()) -> None:
    """Parse the command line for `main`, call it, and end as `rope_nd._command` says. With `shown`, --help tells of these options
    in a line each and names the others, and --help-all tells of all."""
    with ending():
        arguments = sys.argv[1:]
        if shown and {"--help", "-h"} & set(arguments):
            print(brief(main, program, shown, min(shutil.get_terminal_size().columns, 120)))
            return
        arguments = ["--help" if one == "--help-all" else one for one in arguments]
        with _plain_where_asked():
            call = tyro.cli(_later(main), prog=program, args=arguments)
        try:
            call()
        except WorkerLost as error:  # which is nobody's input
            sys.exit(told(error, 1))


def _later(main: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """What takes the arguments of `main` and calls it later, when they are parsed."""

    @functools.wraps(main)
    def take(*given: Any, **named: Any) -> Callable[[], Any]:
        return functools.partial(main, *given, **named)

    return take


@contextmanager
def _plain_where_asked() -> Iterator[None]:
    """Within it NO_COLOR holds for tyro too, which asks TERM alone."""
    before = os.environ.get("TERM")
    if os.environ.get("NO_COLOR"):
        os.environ["TERM"] = "dumb"
    try:
        yield
    finally:
        os.environ.pop("TERM", None)
        if before is not None:
            os.environ["TERM"] = before


def facts() -> dict[str, str]:
    """The command and the commit, for every row."""
    return {"command": command(), "commit": commit()}


def command() -> str:
    """What was typed, as far as it can be told."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name
    return shlex.join(["python", *(["-m"] if spec is not None else []), name, *sys.argv[1:]])


def commit() -> str:
    """Short hash of the checkout, marked when files differ from it."""
    shown = [_git("rev-parse", "--short=12", "HEAD"), "+dirty" if _git("status", "--porcelain", "--untracked-files=no") else ""]
    return "".join(shown) or "unknown"


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Where it ran."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    found = {
        "cpu": cpu,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return {**found, "gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else found
