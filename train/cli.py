"""What all command lines share: one clear line and exit code 2 for bad input, 130 on interrupt, facts for the record."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import tyro
from rich.console import Console

console = Console()
ROOT = Path(__file__).resolve().parent.parent


def run(main: Callable[..., Any], program: str) -> None:
    """Parse the command line for `main` and call it."""
    try:
        tyro.cli(main, prog=program)
    except ValueError as error:
        last = str(error).strip().splitlines()[-1]  # what a data worker raised comes with its traceback before it
        print(f"error: {last.removeprefix('ValueError: ')}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


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
