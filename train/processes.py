"""Several processes that train one model, as torchrun starts them; alone there is one."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

PATIENCE = timedelta(minutes=30)  # that one process waits for the others: for the first, as it measures and saves
SIGNS = "gloo", "nccl", "connection", "socket", "timed out", "process group"  # in what torch says where another process is gone

Given = TypeVar("Given")


class Lost(SystemExit):
    """Another process of the run is gone; told in one line, and the exit code is 1."""


def join(device: str) -> tuple[int, int]:
    """Rank and number of processes under torchrun; (0, 1) alone."""
    world = number()
    if world > 1 and not dist.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        store, rank, _ = next(dist.rendezvous("env://", timeout=PATIENCE))
        store = dist.PrefixStore(
            os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store
        )  # else the dead ones' addresses are found
        kind = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(kind, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    return (dist.get_rank(), world) if world > 1 else (0, 1)


def number() -> int:
    """Of processes, as torchrun tells it."""
    return int(os.environ.get("WORLD_SIZE", 1))


def part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def wait(world: int) -> None:
    """Until all have come here."""
    if world > 1:
        dist.barrier()


def largest(flags: tuple[float, ...], world: int, device: torch.device) -> list[int]:
    """The largest of each flag on all processes."""
    shared = torch.tensor(flags, device=device if world > 1 else "cpu").long()
    if world > 1:
        dist.all_reduce(shared, dist.ReduceOp.MAX)
    found: list[int] = shared.tolist()
    return found


def from_all(thing: Any, world: int) -> list[Any]:
    """What each process has, in order of rank."""
    found = [thing] * world
    if world > 1:
        dist.all_gather_object(found, thing)
    return found


def each(work: Callable[[], Given], world: int) -> list[Given]:
    """What `work` gives on each process, in order of rank; where it fails on one of them, its error is raised on all."""
    try:
        mine = work(), None
    except (OSError, ValueError) as error:
        if world == 1:
            raise
        mine = None, error
    told = from_all(mine, world)
    for _, error in told:
        if error is not None:
            raise error
    return [given for given, _ in told]


def first(work: Callable[[], Given], rank: int, world: int) -> Given:
    """What `work` gives on the first process, on all; it is not called elsewhere."""
    found: Any = each(work if rank == 0 else lambda: None, world)[0]
    return found


@contextmanager
def together() -> Iterator[None]:
    """Within it, what torch says where another process is gone is `Lost`."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0].split("This is typically")[0].strip()
        lost = isinstance(error, dist.DistError) or any(sign in said.lower() for sign in SIGNS)
        if number() == 1 or isinstance(error, ValueError) or not lost:
            raise
        atexit.register(_leave)
        raise Lost(
            f"error: process {os.environ.get('RANK')} of {number()} cannot go on, another one was lost ({said}): see what that one "
            "said; the same command goes on from the newest checkpoint"
        ) from error


def _leave() -> None:
    """End without torch's own end, which may wait for the lost process (seen with gloo and three processes)."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)
