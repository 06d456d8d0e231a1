"""One file a backend, all with the same signature, on raw tensors without autograd:

    turn(x, out, cos, sin, layout, prefix, inverse)

`x`, `out`: `[B, H, N, D]` (some take `[G, B, H, N, D]`), one dtype, any strides; `out` may be `x` itself. `cos`, `sin`: float32
(float64 for float64) `[B|1, H|1, N - prefix, P]`, 2P <= D. Channels beyond 2P and the first `prefix` tokens are copied, or left.
`inverse` turns by the opposite angles. Arithmetic in the dtype of the tables, rounded once. `supports(x, out, cos, sin, layout)`
says whether a backend takes these tensors. Some have `turn_back(gs, ys, outs, cos, sin, layout, prefix, inverse)` too, for
tables of angles: from the gradients of several ys that were turned by them, those of their inputs (in `outs`) and, returned, those
of cos and sin, summed over all; gradients beyond the ys are copied. `turn_some(xs, outs, turned, ...)` turns the first `turned` of
several and copies the others. `eager` is the differentiable formula, for graphs and all else.

The first backend that takes the tensors and has been proven right in this process is chosen.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from . import proof

BACKENDS = {"cpu": ("native", "complex", "real", "staged"), "cuda": ("triton", "complex", "real", "staged")}  # the fastest first


def choose(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str) -> ModuleType | None:
    """The backend for these tensors; None if there is none."""
    for name in BACKENDS.get(x.device.type, ()):
        backend = load(name)
        if backend.supports(x, out, cos, sin, layout) and proven(name, x.device, x.dtype):
            return backend
    return None


@cache
def load(name: str) -> ModuleType:
    return import_module(f".{name}", __name__)


def proven(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a backend is right, tried once a process; while CUDA records a graph, nothing can be tried."""
    if (name, device, dtype) not in _proofs:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        _proofs[name, device, dtype] = proof.is_right(load(name), device, dtype)
    return _proofs[name, device, dtype]


_proofs: dict[tuple[str, torch.device, torch.dtype], bool] = {}
