"""A few operations on the two halves of all pairs: float32 and float64, both layouts, any strides; the bits of the formula."""

import torch
from torch import Tensor


def supports(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str) -> bool:
    """Tensors of one dtype, float32 or float64."""
    return x.dtype == out.dtype == cos.dtype and x.dtype in (torch.float32, torch.float64)


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
    """a' = a cos - b sin, b' = a sin + b cos for each pair (a, b)."""
    pairs, sign = cos.shape[-1], -1 if inverse else 1
    a, b = halves(x[..., prefix:, :], pairs, layout)  # [.., N, P]
    if out is x:
        kept = a * sin
        a.mul_(cos).sub_(b * sin, alpha=sign)  # addcmul rounds once where the formula rounds twice
        b.mul_(cos).add_(kept, alpha=sign)
        return
    first, second = halves(out[..., prefix:, :], pairs, layout)
    torch.mul(a, cos, out=first).sub_(b * sin, alpha=sign)
    torch.mul(b, cos, out=second).add_(a * sin, alpha=sign)
    out[..., :prefix, :] = x[..., :prefix, :]
    out[..., prefix:, 2 * pairs :] = x[..., prefix:, 2 * pairs :]


def halves(x: Tensor, pairs: int, layout: str) -> tuple[Tensor, Tensor]:
    """The first and the second channel of each pair, views `[.., N, P]`."""
    if layout == "interleaved":
        return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    return x[..., :pairs], x[..., pairs : 2 * pairs]
