"""Several processes that train one model, as torchrun starts them; alone there is one."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist


def join(device: str) -> tuple[int, int]:
    """Rank and number of processes under torchrun; (0, 1) alone."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1 and not dist.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return (dist.get_rank(), world) if world > 1 else (0, 1)


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
