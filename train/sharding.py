"""A model shared out over processes by rows (FSDP2): each keeps its part of every parameter, gradient and optimiser's number.

A block's parameters are put together where the block is used, forward and backward, and dropped again; those outside of the blocks
(patches, head, and an encoding's learned frequencies) once a step. So tables of positions are made of whole frequencies, as alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from train.config import Config
from train.modelling import build
from train.pieces import Piecewise, span

Stored = Tensor | Piecewise  # a whole tensor, or one that is read by rows


def share_out(model: nn.Module, device: torch.device, world: int) -> None:
    """Move a model to the device, each process its rows; all have the values of the first. Blocks are shared out one by one."""
    _check(model)
    for value in model.state_dict().values():
        moved = value.to(device)
        dist.broadcast(moved, 0)
        value.copy_(moved)
    mesh = init_device_mesh(device.type, (world,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def blocks(model: nn.Module) -> list[nn.Module]:
    """What timm calls `blocks`, wherever they are in the model."""
    stacks = (module for name, module in model.named_modules() if name.rpartition(".")[2] == "blocks")
    return [block for stack in stacks if isinstance(stack, (nn.Sequential, nn.ModuleList)) for block in stack]


def _check(model: nn.Module) -> None:
    """Refuse what cannot be shared out."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ValueError("--fsdp: this model has batch norms, whose means would differ by process: leave --fsdp out")
    if single := [name for name, value in model.named_parameters() if value.ndim == 0]:
        raise ValueError(
            f"--fsdp: {', '.join(single[:3])} is one number, which has no rows to share out: leave --fsdp out, or give it "
            "a dimension"
        )


@torch.no_grad()
def whole(model: nn.Module, config: Config, rank: int) -> nn.Module | None:
    """The same model with all its weights, on the first process, in its CPU's memory; all processes call this together."""
    found = {}
    for name, value in model.state_dict().items():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        if rank == 0:
            found[name] = full.cpu()
    if rank > 0:
        return None
    plain = build(config)
    plain.load_state_dict(found)
    return plain


def fitting(given: Mapping[str, Stored], model: nn.Module) -> dict[str, Tensor]:
    """A stored state dict as `model.load_state_dict` takes it: whole, or the rows of this process."""
    known = model.state_dict()
    return {name: placed(value, known.get(name)) for name, value in given.items()}


def placed(given: Stored, like: Tensor | None) -> Tensor:
    """A stored tensor, whole; or this process's rows of it, if `like` is shared out."""
    if not isinstance(like, DTensor):
        return given if isinstance(given, Tensor) else given[:]
    if given.shape != like.shape:
        raise ValueError(f"a stored tensor of shape {list(given.shape)} for one of {list(like.shape)}: weights of another model")
    mesh = like.device_mesh
    start, stop = span(len(like), mesh.get_local_rank(), mesh.size())
    rows = given[start:stop].to(like.device)
    return DTensor.from_local(rows, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def parted(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state: its tensors that are shared out, by `"parameter.name"`, and all the rest."""
    shared, rest = {}, {}
    for index, held in state["state"].items():
        shared |= {f"{index}.{name}": value for name, value in held.items() if isinstance(value, DTensor)}
        rest[index] = {name: value for name, value in held.items() if not isinstance(value, DTensor)}
    return shared, {**state, "state": rest}


def joined(state: dict[str, Any], shared: Mapping[str, Stored], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same state as `optimizer.load_state_dict` takes it. What has the shape of its parameter is shared out as that is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found: dict[int, dict[str, Any]] = {index: dict(held) for index, held in state["state"].items()}
    for key, value in shared.items():
        index, name = key.split(".", 1)
        found.setdefault(int(index), {})[name] = value
    for index, held in found.items():
        for name, value in held.items():
            if isinstance(value, Piecewise) or (isinstance(value, Tensor) and value.shape == parameters[index].shape):
                held[name] = placed(value, parameters[index])
    return {**state, "state": found}
