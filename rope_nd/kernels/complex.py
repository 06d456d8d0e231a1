"""One complex multiplication: interleaved pairs in float32 and float64, one read and one write without a compiler."""

import torch
from torch import Tensor


def supports(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str) -> bool:
    """Interleaved pairs that can be read as complex numbers where they lie."""
    wide = x.dtype == out.dtype == cos.dtype and x.dtype in (torch.float32, torch.float64)
    return wide and layout == "interleaved" and cos.shape[-1] > 0 and _readable(x) and _readable(out)


def turn(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, layout: str, prefix: int, inverse: bool) -> None:
    """(a + i b) (cos + i sin), the pair read as one complex number."""
    width = 2 * cos.shape[-1]
    table = torch.complex(cos, -sin if inverse else sin)
    torch.mul(_numbers(x[..., prefix:, :width]), table, out=_numbers(out[..., prefix:, :width]))
    if out is not x:
        out[..., :prefix, :] = x[..., :prefix, :]
        out[..., prefix:, width:] = x[..., prefix:, width:]


def _numbers(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # [.., N, P]


def _readable(x: Tensor) -> bool:
    return bool(x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in x.stride()[:-1]))
