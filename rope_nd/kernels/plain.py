"""What kernels are told, and whether they may be given the memory of tensors: nothing may be recording, values must be as read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from . import BACKENDS

Some = tuple[Tensor, ...]
Three = tuple[Tensor, Tensor, Tensor]
PLAIN = (Tensor, Parameter)
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class How(NamedTuple):
    """Layout, tokens that are left, the opposite angle or not; whether the tables are cosines and sines of angles."""

    layout: str
    prefix: int = 0
    inverse: bool = False
    circle: bool = False

    def opposite(self) -> How:
        return self._replace(inverse=not self.inverse)


def direct(work: torch.dtype, x: Tensor, *others: Tensor) -> bool:
    """Whether kernels may be given the memory of these tensors: plain ones, nothing recording, float32 or float64 arithmetic."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return False
    if (
        x.dtype not in KINDS
        or x.device.type not in BACKENDS
        or work != (torch.float64 if x.dtype == torch.float64 else torch.float32)
    ):
        return False
    plain = _plain_keys(x.device)
    return all(t.device == x.device and type(t) in PLAIN and torch._C._dispatch_keys(t).raw_repr() in plain for t in (x, *others))


@cache
def _plain_keys(device: torch.device) -> frozenset[int]:
    """What PyTorch marks ordinary tensors with: dense, with memory of their own, the values in it as they are read."""
    found = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.append(torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr())
    return frozenset(found)


def fits(shape: Sequence[int], cos: Tensor, sin: Tensor, prefix: int) -> bool:
    """Whether the tables broadcast against an x of `shape` `[.., N, D]` and not the other way round."""
    if sin.shape != cos.shape or cos.ndim > len(shape) or cos.shape[-2] + prefix != shape[-2]:
        return False
    return all(c in (1, n) for c, n in zip(cos.shape[-3::-1], shape[-3::-1]))


def four(x: Tensor) -> Tensor:
    """`[.., N, D]` as `[B, H, N, D]`."""
    return x if x.ndim >= 4 else x[(None,) * (4 - x.ndim)]


def parts(qkv: Tensor) -> Three:
    """q, k, v `[B, H, N, D]`, views of a projection `[B, N, 3, H, D]`."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v
