"""Real arithmetic: both layouts, every dtype and device, compiled and exported graphs."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """x' = x cos - y sin, y' = x sin + y cos for each pair (x, y)."""
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if layout == "interleaved":
        a, b = turned.unflatten(-1, (pairs, 2)).unbind(-1)  # [..., N, P] each
        out = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        out = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
