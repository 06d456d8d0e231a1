"""Half precision a few samples at a time: into a small float32 buffer, turned there, and back, rounded once."""

import torch
from torch import Tensor

from . import complex, real

FEW = 1 << 19  # elements of the buffer, 2 MB


def supports(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str) -> bool:
    """bfloat16 and float16, tables in float32."""
    return x.dtype == out.dtype and x.dtype in (torch.bfloat16, torch.float16) and cos.dtype == torch.float32


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
    """Turn `x` `[.., B, H, N, D]` into `out`, part by part along B."""
    width = 2 * cos.shape[-1]
    few = max(1, FEW // max(1, x[..., :1, :, :, :].numel()))
    for start in range(0, x.shape[-4], few):
        part = slice(start, start + few)
        rows = x[..., part, :, prefix:, :width].to(torch.float32)  # [.., b, H, N, 2P]
        c, s = (t[part] if t.shape[0] > 1 else t for t in (cos, sin))
        kernel = complex if complex.supports(rows, rows, c, s, layout) else real
        kernel.turn(rows, rows, c, s, layout, 0, inverse)
        out[..., part, :, prefix:, :width] = rows
    if out is not x:
        out[..., :prefix, :] = x[..., :prefix, :]
        out[..., prefix:, width:] = x[..., prefix:, width:]
