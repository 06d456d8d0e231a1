"""The plain formula: differentiable, both layouts, every dtype and device, compiled and exported graphs."""

import torch
from torch import Tensor

from .real import halves


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """a' = a cos - b sin, b' = a sin + b cos for each pair (a, b) of the first 2P channels of `x` `[.., N, D]`."""
    pairs = cos.shape[-1]
    a, b = halves(x, pairs, layout)  # [.., N, P]
    first, second, rest = a * cos - b * sin, a * sin + b * cos, x[..., 2 * pairs :]
    if layout == "interleaved":
        out = torch.stack((first, second), dim=-1).reshape(*first.shape[:-1], 2 * pairs)
    else:
        out = torch.cat((first, second), dim=-1)
    return torch.cat((out, rest.expand(*out.shape[:-1], -1)), dim=-1) if rest.shape[-1] else out
